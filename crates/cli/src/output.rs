//! Writes results to stdout and messages to stderr, and returns the exit code.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;

use indicatif::ProgressBar;
use serde::Serialize;

use crate::error::{CliError, CliResult, CommandError};
use crate::log;

/// Writes a result to stdout.
pub fn print(text: &str) -> CliResult {
    let mut stdout = io::stdout().lock();
    let text = if stdout.is_terminal() { printable(text) } else { text.into() };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(CliError::PipeClosed),
        Err(error) => Err(CommandError::Stdout(error).into()),
    }
}

pub fn print_json(value: &impl Serialize) -> CliResult {
    let text = serde_json::to_string_pretty(value).expect("plain data has a JSON form");
    print(&(text + "\n"))
}

/// The bar that is on the terminal now. It erases its own lines when it is drawn anew, and whatever was written there since.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Messages are written above this bar from now on.
pub fn keep_clear_of(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(|it| it.into_inner()) = bar;
}

/// Writes a message to stderr. If stderr is closed, the message is dropped.
pub fn say(text: &str) {
    if log::is_on() {
        return log::message(text);
    }
    write_message(&printable(text));
}

fn write_message(text: &str) {
    let write = || _ = writeln!(io::stderr().lock(), "{text}");
    match &*BAR.lock().unwrap_or_else(|it| it.into_inner()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Reports an error that does not end the command.
pub fn say_error(error: impl Display) {
    if log::is_on() {
        return log::failure(&error.to_string());
    }
    let is_colored =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let (red, plain) = if is_colored { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    write_message(&format!("{red}error:{plain} {}", printable(&error.to_string())));
}

/// Escapes control characters: names of files and scenarios must not control the terminal.
fn printable(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_control) {
        return text.into();
    }
    let shown = |c: char| if is_control(c) { c.escape_default().to_string() } else { c.into() };
    text.chars().map(shown).collect()
}

/// Reports the error, if any, and returns the exit code.
pub fn exit_code(ended: CliResult) -> ExitCode {
    let (error, code) = match ended {
        Ok(()) | Err(CliError::PipeClosed) => return ExitCode::SUCCESS,
        Err(CliError::Stopped { code, message }) => {
            say(&message);
            return ExitCode::from(code);
        }
        #[cfg(feature = "mpi")]
        Err(CliError::Silent { code }) => return ExitCode::from(code),
        Err(CliError::Failed(error)) => (error, 1),
        Err(CliError::Usage(error)) => (error, 2),
    };
    say_error(error);
    ExitCode::from(code)
}
