//! Errors of loading, running and deciding experiments.

use std::io;
use std::path::PathBuf;

use paceline_job::suggest::UnknownName;

/// Why an experiment cannot be loaded or evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// The file cannot be read; the message names it.
    #[error("{0}")]
    Read(String),
    /// The file is not valid TOML or has wrong fields; the message names the line.
    #[error("{experiment}, {message}")]
    Syntax { experiment: String, message: String },
    #[error("{experiment}: {source}")]
    Invalid { experiment: String, source: DefinitionError },
}

/// What is wrong with the content of an experiment.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// A size, recipe or cluster that the experiment does not define.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    #[error("runs with `best` need `rates` to choose from")]
    NoRates,
    #[error("size.{size}: give at least one seed")]
    NoSeeds { size: String },
    #[error("size.{size}: the seed {seed} is listed twice; list each seed once")]
    RepeatedSeed { size: String, seed: u64 },
    #[error("cluster {cluster}: exchange = {value}: give a number above zero, such as 0.3")]
    Exchange { cluster: String, value: String },
    /// The merged job of a recipe has wrong fields.
    #[error("recipe {recipe}: {message}")]
    Recipe { recipe: String, message: String },
    /// The merged scenario of a cluster has wrong fields or values.
    #[error("cluster {cluster}: {message}")]
    Cluster { cluster: String, message: String },
    #[error("claim \"{claim}\": {source}")]
    Claim { claim: String, source: ExpressionError },
    #[error("figure \"{figure}\": {source}")]
    Figure { figure: String, source: FigureError },
}

/// Why a figure cannot be drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FigureError {
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    #[error("x = \"{0}\": give seconds or epochs")]
    UnknownColumn(String),
    #[error("there is no run of `{0}`, one of its series")]
    UnusedSeries(String),
    #[error("there is no run of `{0}`, one of its groups")]
    UnusedGroup(String),
    #[error("the group {0} is not a number")]
    GroupNotANumber(String),
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpressionError {
    /// The run is part of the experiment, but has no result.
    #[error("the run `{run}` has no result")]
    MissingRun { run: String },
    /// No size of the experiment has this run; the message suggests a similar name.
    #[error("{0}")]
    UnknownRun(String),
    #[error("`{expression}`: {message}")]
    Evaluation { expression: String, message: String },
    #[error("`{expression}` is not a number")]
    NotANumber { expression: String },
    #[error("the rule `{rule}` cannot be evaluated: {message}")]
    Rule { rule: String, message: String },
}

/// Why the runs of an experiment cannot be executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// The job of a run is invalid.
    #[error("{run}: {message}")]
    Job { run: String, message: String },
    #[error(
        "{run}: exchange = {exchange} is shorter than the latency of its {steps} steps; lower network.latency"
    )]
    ExchangeTooShort { run: String, exchange: f64, steps: u32 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ExecuteError {
    /// Whether the experiment or the command line is at fault, rather than the machine.
    pub fn is_usage(&self) -> bool {
        match self {
            ExecuteError::Job { .. } | ExecuteError::ExchangeTooShort { .. } => true,
            ExecuteError::Store(_) => false,
        }
    }
}

/// A run that failed; the other runs of the experiment continue.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{run}, seed {seed}: {message}")]
pub struct RunFailure {
    pub run: String,
    pub seed: u64,
    pub message: String,
}

/// Why a results file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot write to {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "another `paceline reproduce` is writing to {}: wait until it ends, or use another --folder",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "{}, line {line}: not a result ({source}); move the file away to start over",
        path.display()
    )]
    Corrupt { path: PathBuf, line: usize, source: serde_json::Error },
}
