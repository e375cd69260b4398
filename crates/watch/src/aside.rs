//! Replaces a file as a whole: the new one is written beside it and takes its name when it is complete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file under a temporary name, beside the one that it will replace.
pub struct Aside {
    from: PathBuf,
    to: PathBuf,
}

impl Aside {
    /// Opens a file to write. If `path` names a file already, the new one gets a temporary name until
    /// [`publish`](Self::publish); new files, devices and pipes are written directly.
    pub fn open(path: &Path) -> io::Result<(File, Option<Aside>)> {
        let there = fs::metadata(path).ok().filter(|there| there.is_file() && there.len() > 0);
        // A link stays a link; the file that it points to is replaced.
        let to = there.as_ref().and_then(|_| fs::canonicalize(path).ok());
        if let (Some(there), Some(to)) = (there, to) {
            let mut from = to.as_os_str().to_owned();
            from.push(format!(".new-{}", std::process::id()));
            let from = PathBuf::from(from);
            // The file may be writable where its folder is not; then it is written directly.
            if let Ok(file) = File::create(&from) {
                let _ = fs::set_permissions(&from, there.permissions());
                return Ok((file, Some(Aside { from, to })));
            }
        }
        Ok((File::create(path)?, None))
    }

    /// Gives the file its name, and replaces the old one.
    pub fn publish(self) -> io::Result<()> {
        let renamed = fs::rename(&self.from, &self.to);
        renamed.inspect_err(|_| _ = fs::remove_file(&self.from))
    }

    /// Leaves the old file as it is.
    pub fn discard(self) {
        let _ = fs::remove_file(self.from);
    }
}

/// Writes a file. If it cannot be written completely, a file that was there before stays as it is.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let (mut file, aside) = Aside::open(path)?;
    let written = file.write_all(text.as_bytes());
    match (written, aside) {
        (Ok(()), Some(aside)) => aside.publish(),
        (Err(error), Some(aside)) => {
            aside.discard();
            Err(error)
        }
        (written, None) => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("paceline-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("the folder can be created");
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("the folder exists").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_old_file_is_whole_until_the_new_one_is_complete() {
        let folder = scratch("aside");
        let path = folder.join("page.html");
        write(&path, "old").expect("a new file can be written");

        let (mut file, aside) = Aside::open(&path).expect("it can be opened");
        file.write_all(b"ne").expect("it can be written");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "old");
        file.write_all(b"w").expect("it can be written");
        aside.expect("there is an old file").publish().expect("it can be renamed");

        assert_eq!(fs::read_to_string(&path).expect("it is there"), "new");
        assert_eq!(names(&folder), ["page.html"]);
        fs::remove_dir_all(folder).expect("it can be deleted");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = scratch("aside-link");
        let (path, link) = (folder.join("page.html"), folder.join("link"));
        write(&path, "old").expect("a new file can be written");
        std::os::unix::fs::symlink(&path, &link).expect("a link can be created");

        write(&link, "new").expect("it can be written");

        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "new");
        fs::remove_dir_all(folder).expect("it can be deleted");
    }
}
