//! Tests of the command line with the real program: its output, messages and exit codes.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test --test cli` rewrites `tests/snapshots`.

#[cfg(unix)]
mod examples;
mod refusals;
mod reports;
mod runs;
mod texts;

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The result of one call of the program.
#[derive(Debug, PartialEq)]
struct Call {
    code: i32,
    stdout: String,
    stderr: String,
}

fn paceline(arguments: &str) -> Call {
    let output = command(arguments).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Call {
        code: output.status.code().expect("no signal ended it"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments.split_whitespace()).current_dir(work_dir()).stdin(Stdio::null());
    command.env("COLUMNS", "100").env_remove("CLICOLOR_FORCE");
    command
}

/// The working directory of all calls, so that messages name files without a path.
fn work_dir() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn outcome(arguments: &str) -> Value {
    let call = paceline(arguments);
    assert_eq!((call.code, call.stderr.as_str()), (0, ""), "paceline {arguments}");
    serde_json::from_str(&call.stdout).expect("stdout is JSON and nothing else")
}

/// Asserts that each call exits with this code, prints exactly this error to stderr, and nothing to stdout.
fn assert_refused(code: i32, calls: &[(&str, &str)]) {
    for (arguments, message) in calls {
        let call = paceline(arguments);

        let expected = Call { code, stdout: String::new(), stderr: format!("error: {message}\n") };
        assert_eq!(call, expected, "paceline {arguments}");
    }
}
