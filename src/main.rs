//! The command line, with no strategies but ours.

use std::process::ExitCode;

fn main() -> ExitCode {
    paceline::main_with([])
}
