//! What leaves the program: data on stdout, talk on stderr, an exit code.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use paceline_job::Error;
use paceline_reproduce::perform::PerformError;
use serde::Serialize;

/// Why a command ended early.
#[derive(Debug)]
pub enum Ending {
    /// The request makes no sense.
    Usage(String),
    /// The request was fine, but something failed.
    Failed(String),
    /// Whoever read our stdout has gone: a quiet end.
    PipeClosed,
}

pub type Ended = Result<(), Ending>;

impl Ending {
    /// The ending by any error of the crate `job`.
    pub fn of(error: impl Into<Error>) -> Ending {
        let error = error.into();
        match error.is_usage() {
            true => Ending::Usage(error.to_string()),
            false => Ending::Failed(error.to_string()),
        }
    }
}

impl From<Error> for Ending {
    fn from(error: Error) -> Ending {
        Ending::of(error)
    }
}

impl From<PerformError> for Ending {
    fn from(error: PerformError) -> Ending {
        match error.is_usage() {
            true => Ending::Usage(error.to_string()),
            false => Ending::Failed(error.to_string()),
        }
    }
}

/// Data, for stdout.
pub fn print(text: &str) -> Ended {
    let mut stdout = io::stdout().lock();
    let text = if stdout.is_terminal() { printable(text) } else { text.into() };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Ending::PipeClosed),
        Err(error) => Err(Ending::Failed(format!("cannot write to stdout: {error}"))),
    }
}

pub fn print_json(value: &impl Serialize) -> Ended {
    let text = serde_json::to_string_pretty(value).expect("plain data has a JSON form");
    print(&(text + "\n"))
}

/// Talk, for stderr; if nobody can hear it, so be it.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

/// Names may hold anything; a terminal must not take them for commands.
fn printable(text: &str) -> Cow<'_, str> {
    let is_command = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_command) {
        return text.into();
    }
    let shown = |c: char| if is_command(c) { c.escape_default().to_string() } else { c.into() };
    text.chars().map(shown).collect()
}

/// "1 worker", "2 workers".
pub fn some(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A failure that does not end the command.
pub fn say_error(sentence: &str) {
    let is_colored =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let (red, plain) = if is_colored { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let _ = writeln!(io::stderr().lock(), "{red}error:{plain} {}", printable(sentence));
}

pub fn exit_code(ended: Ended) -> ExitCode {
    match ended {
        Ok(()) | Err(Ending::PipeClosed) => ExitCode::SUCCESS,
        Err(Ending::Failed(sentence)) => {
            say_error(&sentence);
            ExitCode::from(1)
        }
        Err(Ending::Usage(sentence)) => {
            say_error(&sentence);
            ExitCode::from(2)
        }
    }
}
