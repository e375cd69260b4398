//! Messages as log lines, for programs that collect them.

use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use paceline_runtime::{Line, Reader, Record};
use tracing::{Level, error, info, warn};

#[derive(Args)]
pub struct LogFlag {
    /// Write messages to stderr as log lines with time and level: text, or json for one object per line
    #[arg(long, value_enum, value_name = "HOW")]
    log: Option<Log>,
}

// Help texts of values would make every flag of the command take a paragraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Log {
    Text,
    Json,
}

/// How messages are written, once a command has decided it.
static LOG: OnceLock<Log> = OnceLock::new();

impl LogFlag {
    /// Begins to write log lines, if they are wanted.
    pub fn begin(&self) {
        let Some(log) = self.log else { return };
        let lines = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_max_level(Level::INFO)
            .with_target(false)
            .with_ansi(false);
        let begun = match log {
            Log::Text => lines.try_init(),
            Log::Json => lines.json().flatten_event(true).try_init(),
        };
        // Whoever embeds this program may have lines of its own: these are among them then.
        let _ = begun;
        let _ = LOG.set(log);
    }

    /// The same flag for a process that this one starts.
    pub fn argument(&self) -> Option<&'static str> {
        self.log.map(|log| match log {
            Log::Text => "--log=text",
            Log::Json => "--log=json",
        })
    }
}

/// Whether messages are log lines.
pub fn is_on() -> bool {
    LOG.get().is_some()
}

pub fn message(text: &str) {
    info!("{text}");
}

pub fn failure(text: &str) {
    error!("{text}");
}

/// Logs a checkpoint. Without a log it is no message: checkpoints are usual.
pub fn saved(path: &std::path::Path) {
    if is_on() {
        info!(path = %path.display(), "a checkpoint was saved");
    }
}

/// Logs what changes in a run: members, scores, its end.
pub struct LogReader;

impl Reader for LogReader {
    fn read(&mut self, line: &Line) {
        if !is_on() {
            return;
        }
        let job_seconds = line.at.as_secs_f64();
        match &line.record {
            Record::Began { strategy, model, data, samples_total, .. } => {
                info!(strategy, model, data, samples_total, "the job begins");
            }
            Record::View { number, members, reason } => {
                let members: Vec<u32> = members.iter().map(|who| who.0).collect();
                info!(job_seconds, view = number, members = ?members, "{reason}");
            }
            Record::Crashed { who } => warn!(job_seconds, worker = who.0, "a worker died"),
            Record::PutOut { who } => warn!(job_seconds, worker = who.0, "a worker was put out"),
            Record::StartedOver => {
                warn!(job_seconds, "every replica was lost: training starts over");
            }
            Record::Restarted => info!(job_seconds, "the coordinator was started again"),
            Record::Scored { samples, loss, accuracy } => {
                info!(job_seconds, samples, loss, accuracy, "evaluated on the test set");
            }
            Record::GaveUp { restarts } => error!(job_seconds, restarts, "the job gave up"),
            Record::Disagreed { exchange, .. } => {
                error!(job_seconds, exchange, "members hold different replicas");
            }
            Record::Over => info!(job_seconds, "the job is over"),
            _ => {}
        }
    }
}
