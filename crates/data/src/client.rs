//! Fetches packages with the package managers of this machine and reads the files in them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::read::{GzDecoder, MultiGzDecoder};

use crate::error::{FetchError, PackageError};
use crate::folder::read_bounded;
use crate::limits::BYTES_MAX;

/// Files by name, without folders.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A package manager that downloads packages.
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

    /// Fetches a package and returns its files. Runs no code of the package and needs no root privileges.
    pub fn fetch(self, package: &str) -> Result<Files, FetchError> {
        let dir = tempfile::tempdir().map_err(FetchError::TemporaryFolder)?;
        match self {
            Client::Npm => {
                let pack =
                    ["pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1", package];
                run(Command::new("npm").args(pack).current_dir(&dir))?;
                let archive = File::open(file_with_ending(dir.path(), "tgz")?);
                let archive = archive.map_err(FetchError::Archive)?;
                files_in(GzDecoder::new(BufReader::new(archive)))
            }
            Client::Apt => {
                run(Command::new("apt-get").args(["download", package]).current_dir(&dir))?;
                let archive = file_with_ending(dir.path(), "deb")?;
                let tar = run(Command::new("dpkg-deb").arg("--fsys-tarfile").arg(archive))?;
                files_in(&tar.stdout[..])
            }
        }
    }
}

/// Returns the files of a package that are already those of the data set.
pub fn unchanged(package: Files) -> Result<Files, PackageError> {
    Ok(package)
}

/// Returns the gzipped files of a package, unzipped; other files are omitted.
pub fn gunzipped(package: Files) -> Result<Files, PackageError> {
    let mut files = Files::new();
    for (name, zipped) in &package {
        if let Some(file) = name.strip_suffix(".gz") {
            let bytes = read_bounded(MultiGzDecoder::new(&zipped[..]))
                .map_err(|source| PackageError::Unzip { file: file.to_owned(), source })?;
            files.insert(file.to_owned(), bytes);
        }
    }
    Ok(files)
}

/// Runs a client until it exits; if it fails, the error contains the client's own message.
fn run(command: &mut Command) -> Result<Output, FetchError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(FetchError::ClientMissing { program });
        }
        Err(source) => return Err(FetchError::ClientStart { program, source }),
    };
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let reason = reason(&stderr).unwrap_or("it gave no reason").to_owned();
    Err(FetchError::ClientFailed { program, reason })
}

/// Returns the first line that is marked as an error, or else the last line.
fn reason(stderr: &str) -> Option<&str> {
    let marks = ["E: ", "npm error ", "npm ERR! "];
    let marked = |line| marks.into_iter().find_map(|mark| str::strip_prefix(line, mark));
    let last = || stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
    stderr.lines().find_map(marked).or_else(last)
}

/// Returns the file with this ending; its whole name is the client's choice.
fn file_with_ending(dir: &Path, ending: &'static str) -> Result<PathBuf, FetchError> {
    let entries = dir.read_dir().map_err(FetchError::TemporaryFolder)?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .find(|path| path.extension() == Some(OsStr::new(ending)))
        .ok_or(FetchError::NoArchive { ending })
}

/// Reads all regular files of a tar archive into memory, so that no path in it is ever written to.
fn files_in(archive: impl Read) -> Result<Files, FetchError> {
    let broken = FetchError::Archive;
    let mut files = Files::new();
    let mut bytes_total: u64 = 0;
    for entry in tar::Archive::new(archive).entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        bytes_total = bytes_total.saturating_add(entry.size());
        if bytes_total > BYTES_MAX {
            return Err(FetchError::TooLarge);
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
    fn the_files_of_an_archive_are_keyed_by_file_name() {
        let tar = tar_of(&[("package/data/labels", b"1"), ("package/readme", b"22")]);

        let files = files_in(&tar[..]).unwrap();

        let expected = [("labels".into(), b"1".to_vec()), ("readme".into(), b"22".to_vec())];
        assert_eq!(files, Files::from(expected));
    }

    #[test]
    fn a_truncated_or_too_large_archive_is_refused() {
        let mut tar = tar_of(&[("package/data", &[7; 2_000])]);
        assert!(matches!(files_in(&tar[..1_000]), Err(FetchError::Archive(_))));

        let mut header = tar::Header::new_gnu();
        header.set_path("package/data").unwrap();
        header.set_size(BYTES_MAX + 1);
        header.set_cksum();
        tar[..512].copy_from_slice(header.as_bytes());
        assert!(matches!(files_in(&tar[..]), Err(FetchError::TooLarge)));
    }

    #[test]
    fn a_client_that_is_missing_or_fails_is_named() {
        let missing = run(&mut Command::new("no-such-client")).unwrap_err();
        assert_eq!(missing.to_string(), "no-such-client is not installed on this machine");

        let failed = run(Command::new("sh").args(["-c", "echo no network >&2; exit 3"]));
        assert_eq!(failed.unwrap_err().to_string(), "sh failed: no network");

        assert_eq!(
            reason("npm error code ENOTFOUND\nnpm error at x.js:1\n"),
            Some("code ENOTFOUND")
        );
        assert_eq!(reason("W: unsandboxed\nE: Unable to locate x\n"), Some("Unable to locate x"));
        assert_eq!(reason("\n"), None);
    }
}
