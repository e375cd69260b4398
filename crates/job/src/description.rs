//! Reads the TOML files that describe jobs, scenarios and experiments.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::plain::plain;

/// Longer files are not descriptions.
const BYTES_MAX: u64 = 1_000_000;

/// A description of a job, a scenario or an experiment could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    #[error("cannot read the {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot read the {what} {}: it is longer than a million bytes", path.display())]
    TooLong { what: &'static str, path: PathBuf },
    /// `from` is a path, or the name of a built-in description.
    #[error("{from}, {source}")]
    Malformed { from: String, source: TomlError },
}

/// The text of the file; `what` names its content in errors, e.g. "job".
pub fn read_description(
    what: &'static str,
    path: impl AsRef<Path>,
) -> Result<String, DescriptionError> {
    let path = path.as_ref().to_owned();
    let mut text = String::new();
    let file = File::open(&path);
    match file.and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text)) {
        Err(source) => Err(DescriptionError::Io { what, path, source }),
        Ok(_) if text.len() as u64 > BYTES_MAX => Err(DescriptionError::TooLong { what, path }),
        Ok(_) => Ok(text),
    }
}

/// Malformed TOML: "line 3: expected a whole number, 0 or more; found the string "x" (in `batch = "x"`)".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TomlError {
    /// Counted from 1, where the parser knows it.
    pub line: Option<usize>,
    pub message: String,
    /// The text of that line, shortened.
    pub excerpt: String,
}

impl TomlError {
    /// The parser's error about `text`.
    pub fn new(text: &str, error: &toml::de::Error) -> TomlError {
        // A file that is not TOML at all may be one long line.
        let message = shortened(&plain(&error.message().replace('\n', " ")), 400);
        let before = error.span().map(|span| &text[..span.start.min(text.len())]);
        let line = before.map(|before| before.matches('\n').count() + 1);
        let excerpt = line.and_then(|line| text.lines().nth(line - 1)).unwrap_or("").trim();
        TomlError { line, message, excerpt: shortened(excerpt, 80) }
    }
}

impl fmt::Display for TomlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TomlError { line, message, excerpt } = self;
        match line {
            None => write!(f, "{message}"),
            Some(line) if excerpt.is_empty() => write!(f, "line {line}: {message}"),
            Some(line) => write!(f, "line {line}: {message} (in `{excerpt}`)"),
        }
    }
}

fn shortened(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
