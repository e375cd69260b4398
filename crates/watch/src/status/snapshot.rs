//! What is known of a run at one moment, as plain data: the page, `paceline status` and the metrics show nothing else.

use serde::{Deserialize, Serialize};

use crate::table::duration;

/// A run at one moment. Times are in seconds; those that end in `_at` count from the start of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Of the program.
    pub version: String,
    /// Where the workers run: threads, processes, machines, ranks.
    pub place: String,
    pub phase: Phase,
    pub strategy: String,
    pub model: String,
    pub data: String,
    pub params: u64,
    pub seed: u64,
    /// How long the job has run.
    pub seconds: f64,
    pub samples: u64,
    pub samples_total: u64,
    pub samples_wasted: u64,
    pub epochs: f64,
    pub epochs_total: f64,
    pub rounds: u64,
    pub samples_per_second: f64,
    pub seconds_left: Option<f64>,
    pub bytes_sent: u64,
    pub loss: Option<f64>,
    pub test_loss: Option<f64>,
    pub accuracy: Option<f64>,
    pub curves: Curves,
    /// Members first, then newcomers, then the newest of those that are gone.
    pub workers: Vec<Worker>,
    pub waits: Vec<Wait>,
    pub verdicts: Verdicts,
    /// The newest is the last one.
    pub events: Vec<Event>,
    pub counts: Counts,
    pub checkpoint: Option<Checkpoint>,
    /// Why the job ended without a result.
    pub failure: Option<String>,
    pub actions: Actions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No view yet: workers are still missing.
    #[default]
    Waiting,
    Training,
    /// The user has asked that the job end.
    Stopping,
    Over,
    Failed,
}

/// Points of seconds, epochs and value; there are at most some hundred of each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    pub loss: Vec<[f64; 3]>,
    pub test_loss: Vec<[f64; 3]>,
    pub accuracy: Vec<[f64; 3]>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    pub id: u32,
    pub state: State,
    /// How long it has been in this state; of one that works, how long it has been a member.
    pub state_seconds: f64,
    /// Its address, if the cluster knows one.
    pub address: Option<String>,
    /// While it computes.
    pub samples_per_second: Option<f64>,
    /// Of the samples that all members computed lately, from 0 to 1.
    pub share: f64,
    /// Of its time lately, from 0 to 1.
    pub busy: f64,
    pub rounds: u64,
    /// How many rounds it is behind the member that is furthest ahead.
    pub rounds_behind: u64,
    pub samples: u64,
    pub compute_seconds: f64,
    /// How long it waited for others, and others for it.
    pub waited_seconds: f64,
    pub waited_for_seconds: f64,
    /// The part of the other members' time that they waited for it lately, from 0 to 1.
    pub waited_for: f64,
    pub bytes_sent: u64,
    /// Since its last sign of life in the journal.
    pub silent_seconds: f64,
    /// Times of its lines are wrong by this much at most, if that was measured.
    #[serde(default)]
    pub clock_error_seconds: Option<f64>,
    /// The sums of whole rounds, if it has ended one.
    pub committed: Option<Committed>,
}

/// What a worker had done when its last round ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Committed {
    /// Seconds since the start of the job.
    pub at: f64,
    pub rounds: u64,
    pub samples: u64,
    pub compute_seconds: f64,
    pub waited_seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has started and is in no view yet.
    Joining,
    /// It computes and exchanges; shorter waits are part of every round.
    Working,
    /// It has waited for others for a while, in an exchange that they have not entered.
    Waiting,
    /// All have entered an exchange, which has taken a while since.
    Exchanging,
    /// Nothing was heard of it for much longer than usual.
    Hanging,
    Finished,
    Left,
    Lost,
    PutOut,
}

impl State {
    pub fn is_gone(self) -> bool {
        matches!(self, State::Left | State::Lost | State::PutOut)
    }

    /// For readers.
    pub fn name(self) -> &'static str {
        match self {
            State::Joining => "joining",
            State::Working => "working",
            State::Waiting => "waiting",
            State::Exchanging => "exchanging",
            State::Hanging => "hanging",
            State::Finished => "finished",
            State::Left => "left",
            State::Lost => "lost",
            State::PutOut => "put out",
        }
    }
}

/// Some members wait for others in an exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    pub who: Vec<u32>,
    pub whom: Vec<u32>,
    /// How long the first of them has waited.
    pub seconds: f64,
}

/// How often something has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub joined: u64,
    pub left: u64,
    pub lost: u64,
    /// Losses after which training goes on, and how long it stood still for them in all.
    pub recovered: u64,
    pub recovery_seconds: f64,
    pub recovery_seconds_max: f64,
    pub started_over: u64,
    /// How often the coordinator was started again.
    pub restarted: u64,
}

/// The newest checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub path: String,
    pub age_seconds: f64,
    /// Seconds since 1970.
    pub written_at_unix: f64,
}

/// What the user can ask of this run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actions {
    pub save: bool,
    pub stop: bool,
    pub put_out: bool,
    pub ban: bool,
}

/// One thing that happened, in a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the start of the job.
    pub at: f64,
    pub kind: Kind,
    pub text: String,
    /// How long training stood still, once it goes on.
    pub recovery_seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Joined,
    Left,
    Lost,
    Saved,
    Restarted,
    StartedOver,
    Failed,
    Over,
}

impl Event {
    /// The sentence, with the time that training stood still.
    pub fn sentence(&self) -> String {
        match self.recovery_seconds {
            Some(seconds) => format!("{}; training went on after {}", self.text, duration(seconds)),
            None => self.text.clone(),
        }
    }
}

/// The answers to three questions, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdicts {
    /// Which worker is slow?
    pub slow: Verdict,
    /// Which one hangs?
    pub hangs: Verdict,
    /// What does it cost?
    pub cost: Verdict,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub level: Level,
    pub sentence: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    #[default]
    Fine,
    Warning,
    Bad,
}
