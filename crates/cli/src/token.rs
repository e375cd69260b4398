//! `paceline token`: who may join a job whose coordinator runs on this machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use paceline_job::processes::{Wish, ask_coordinator};

use crate::error::{CliResult, UsageError};
use crate::output::print;

/// Make, list and revoke tokens of a coordinator that runs on this machine, and ban workers
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Token {
    #[command(subcommand)]
    wish: What,
}

const EXAMPLES: &str = "\
Examples:
  paceline token new --state run1 --uses 4 --hours 24 > token
  paceline token revoke 0 --state run1";

#[derive(Subcommand)]
enum What {
    /// Make a token and print it
    New {
        /// How many workers may join with it
        #[arg(long, value_name = "N", default_value_t = TOKEN_USES)]
        uses: u32,
        /// For how many hours it is valid
        #[arg(long, value_name = "H", default_value = TOKEN_HOURS, value_parser = hours)]
        hours: Duration,
        #[command(flatten)]
        place: Place,
    },
    /// List all tokens: number, uses, when each one ends
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Let nobody join any more with this token; workers that have joined stay
    Revoke {
        /// The number of the token, as `list` shows it
        number: u32,
        #[command(flatten)]
        place: Place,
    },
    /// Put out a worker for good; revoke its token, too, or it may come back as a stranger
    Ban {
        /// The worker's number
        worker: u32,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Args)]
struct Place {
    /// The state folder of the coordinator
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
}

pub const TOKEN_USES: u32 = 10_000;
pub const TOKEN_HOURS: &str = "720";

impl Token {
    pub fn run(&self) -> CliResult {
        let (wish, place) = match &self.wish {
            What::New { uses, hours, place } => {
                (Wish::NewToken { uses: *uses, lasts: *hours }, place)
            }
            What::List { place } => (Wish::ListTokens, place),
            What::Revoke { number, place } => (Wish::RevokeToken { number: *number }, place),
            What::Ban { worker, place } => (Wish::Ban { worker: *worker }, place),
        };
        print(&ask_coordinator(&place.state, &wish)?)
    }
}

/// Reads a number of hours.
pub fn hours(text: &str) -> Result<Duration, UsageError> {
    const HOURS_MAX: f64 = 100_000.0;
    match text.parse::<f64>() {
        Ok(hours) if hours > 0.0 && hours <= HOURS_MAX => {
            Ok(Duration::from_secs_f64(3600.0 * hours))
        }
        _ => Err(UsageError::Hours),
    }
}
