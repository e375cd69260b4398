//! The files that a command names: none of them twice, and none that cannot be written.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::output::{Ended, Ending};

/// A file, and what the user calls it: a flag, or "the scenario".
pub type Named = (&'static str, PathBuf);

/// Refuses to write what is read, or two things to one place.
pub fn check_apart(read: &[Named], written: &[Named]) -> Ended {
    for (i, (what, path)) in written.iter().enumerate() {
        let mut others = read.iter().chain(&written[..i]);
        if let Some((other, _)) = others.find(|(_, other)| is_same_file(path, other)) {
            let path = path.display();
            return Err(Ending::Usage(format!(
                "{other} and {what} both name {path}: give each its own file"
            )));
        }
    }
    Ok(())
}

/// Whether a file could be written there; leaves everything as it is.
pub fn check_writable(what: &str, path: &Path) -> Result<(), String> {
    // Whoever listens at a pipe would take a first try for the end.
    let is_special = fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir());
    if is_special {
        return Ok(());
    }
    let is_new = fs::symlink_metadata(path).is_err();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| cannot_write(what, path, &error))?;
    if is_new {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

pub fn write(what: &str, path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| cannot_write(what, path, &error))
}

fn cannot_write(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot write the {what} {}: {error}", path.display())
}

/// Whether two paths lead to one file, by whatever links and detours; it need not be there yet.
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
