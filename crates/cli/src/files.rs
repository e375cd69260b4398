//! Checks and writes the files that a command names.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use paceline_watch::aside;

use crate::error::{CliResult, CommandError, UsageError};

/// A file, and its name for the user: a flag, or "the scenario".
pub type Named = (&'static str, PathBuf);

/// Refuses to overwrite an input file and to write two outputs to one file.
pub fn check_distinct(read: &[Named], written: &[Named]) -> CliResult {
    for (i, (second, path)) in written.iter().enumerate() {
        let mut others = read.iter().chain(&written[..i]);
        if let Some((first, _)) = others.find(|(_, other)| is_same_file(path, other)) {
            return Err(UsageError::SameFile { first, second, path: path.clone() }.into());
        }
    }
    Ok(())
}

/// Refuses a name that promises another format than the file will have: `--plot out.png` would be no PNG. Names without
/// an extension, and devices and pipes, are accepted.
pub fn check_format(
    flag: &'static str,
    path: &Path,
    extensions: &'static [&'static str],
) -> Result<(), UsageError> {
    let Some(extension) = path.extension() else { return Ok(()) };
    let is_known = extensions.iter().any(|known| extension.eq_ignore_ascii_case(known));
    if is_known || is_special(path) {
        return Ok(());
    }
    let instead = path.with_extension(extensions[0]);
    let format = extensions[0].to_uppercase();
    Err(UsageError::Format { flag, path: path.to_owned(), format, instead })
}

/// Whether this is a device or a pipe.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}

/// Checks that a file can be written at this path, without changing anything there.
pub fn check_writable(what: &'static str, path: &Path) -> Result<(), CommandError> {
    // A pipe is not tried: its reader would see end of file when the trial closes it.
    if is_special(path) {
        return Ok(());
    }
    let is_new = fs::symlink_metadata(path).is_err();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|source| cannot_write(what, path, source))?;
    if is_new {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Writes a file; one that was there before is replaced only when the new one is complete.
pub fn write(what: &'static str, path: &Path, text: &str) -> Result<(), CommandError> {
    aside::write(path, text).map_err(|source| cannot_write(what, path, source))
}

fn cannot_write(what: &'static str, path: &Path, source: io::Error) -> CommandError {
    CommandError::Write { what, path: path.to_owned(), source }
}

/// Whether two paths lead to the same file, also through links; the file need not exist yet.
fn is_same_file(a: &Path, b: &Path) -> bool {
    if a == b || is_same_inode(a, b) {
        return true;
    }
    let place = |path: &Path| {
        fs::canonicalize(path).ok().or_else(|| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(folder.join(path.file_name()?))
        })
    };
    place(a).is_some_and(|a| place(b) == Some(a))
}

#[cfg(unix)]
fn is_same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = |path| fs::metadata(path).ok().map(|there| (there.dev(), there.ino()));
    inode(a).is_some_and(|a| inode(b) == Some(a))
}

#[cfg(not(unix))]
fn is_same_inode(_: &Path, _: &Path) -> bool {
    false
}
