//! Invalid jobs, tasks and scenarios.

use crate::description::DescriptionError;
use crate::suggest::UnknownName;
use paceline_data::LoadError;
use paceline_learn::{LayoutError, OptimizerError, ScheduleError};
use paceline_runtime::codec::CodecError;

/// An invalid job or flag.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    #[error(transparent)]
    Choices(#[from] ChoicesError),
    #[error("the names of the model's tensors do not fit it: {0}")]
    Tensors(#[from] LayoutError),
    #[error("workers = 0: a job needs at least one worker")]
    NoWorkers,
    #[error(
        "workers = {workers}: training on threads supports at most {most} workers; simulate larger clusters"
    )]
    TooManyThreads { workers: u32, most: u32 },
    #[error(
        "{field}: threads of one machine have no such fault; remove it from the faults, or simulate the scenario"
    )]
    ImpossibleFault { field: &'static str },
    #[error("workers = {workers}: each is a process of this machine, give at most {most}")]
    TooManyProcesses { workers: u32, most: u32 },
    #[error("faults are rehearsed on threads: omit --processes, or kill a worker process by hand")]
    FaultsOnProcesses,
    #[error("rank {rank} cannot prepare the job: {why}")]
    Rank { rank: usize, why: String },
    #[error("the data of rank {rank} differ from those of rank 0: are they the same files?")]
    RankData { rank: usize },
    #[error(
        "the checkpoint has optimizer states of hosts, which only hosts can load: resume it with the hosts that saved it"
    )]
    SavedByHosts,
    #[error(
        "the checkpoint has states of Paceline's own optimizer, which hosts cannot load: resume it without hosts"
    )]
    SavedWithoutHosts,
    #[error("workers = {workers}: each is a thread of this machine, give at most {most}")]
    TooManyToMeasure { workers: u32, most: u32 },
    #[error("speeds: {0} is not a speed: give numbers above zero")]
    Speed(f64),
    #[error(
        "speeds: {fastest} is more than {most} times {slowest}: give speeds that are closer together"
    )]
    SpeedRatio { fastest: f64, slowest: f64, most: f64 },
    #[error(
        "kernels = \"{0}\": this processor does not have these instructions; omit kernels, or choose portable"
    )]
    NoSuchKernels(&'static str),
    #[error("batch and batch_total say the same thing: give one")]
    TwoBatches,
    #[error("batch = 0: give at least one sample")]
    BatchZero,
    #[error("{field} = {batch}: a worker takes at most {most} samples at a time")]
    BatchTooLarge { field: &'static str, batch: u64, most: u64 },
    #[error(
        "batch_total = {total} is smaller than the {workers} workers: each needs at least one sample"
    )]
    BatchTotalTooSmall { total: u64, workers: u32 },
    #[error("target_loss, target_accuracy and target_training_loss: give one of them")]
    TwoTargets,
    #[error(
        "a target is judged on held-out samples, and none are held out: set validation above 0, or give a target for the training loss"
    )]
    NothingHeldOut,
    #[error("{field} = {loss}: give a number above zero")]
    TargetLoss { field: &'static str, loss: f64 },
    #[error("target_accuracy = {0}: give a number above 0, at most 1")]
    TargetAccuracy(f64),
    #[error("epochs = {0}: give a number above zero, below a million")]
    Epochs(f64),
    #[error("batch_reference = {0}: give a number above zero")]
    BatchReference(f64),
    #[error(
        "{workers} workers x batch {batch} is more than the job's {samples} samples: lower the batch or give more epochs"
    )]
    TooFewSamples { workers: u32, batch: u64, samples: u64 },
    #[error("checkpoints: name a folder for them")]
    NoCheckpointFolder,
    #[error("checkpoints every {0} minutes: give a number above zero, below a million")]
    CheckpointMinutes(f64),
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// A combination of choices that makes no sense; `with` is the strategy's name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoicesError {
    #[error("elasticity = {0}: give a number above 0, at most 1")]
    Elasticity(f32),
    #[error("elasticity is the pull of elastic_average: omit it with {with}")]
    NoElasticity { with: &'static str },
    #[error(
        "shares.smoothing = {0}: give the weight of the newest measurement, above 0 and at most 1"
    )]
    Smoothing(f64),
    #[error("{field} = {part}: give a part of the batch, above 0 and at most 1")]
    OpenPart { field: &'static str, part: f64 },
    #[error("{field} is a part of open batches: choose shares = \"open\", or leave it out")]
    NoOpenPart { field: &'static str },
    #[error("period.growth = {0}: give a number above zero")]
    PeriodGrowth(f32),
    #[error("a period of 0 steps: give at least 1")]
    PeriodZero,
    #[error(
        "period.steps_max = {most} is less than the {first} steps it begins with: give at least as many"
    )]
    PeriodShrinks { first: u64, most: u64 },
    #[error(
        "outer: rate = {rate}, momentum = {momentum}: give a rate above 0 and a momentum from 0 to below 1"
    )]
    Outer { rate: f32, momentum: f32 },
    #[error(
        "shares = open with {with}: open batches grow while a sum is under way, so choose strategy = delayed"
    )]
    OpenShares { with: &'static str },
    #[error("{with} already lets every worker run at its own speed: choose shares = even")]
    SharesWithoutBarrier { with: &'static str },
    #[error(
        "{with} supports only a constant period: members that never exchange together cannot agree on another, so choose period = constant"
    )]
    PeriodNotConstant { with: &'static str },
    #[error(
        "{with} exchanges after every step: omit period, or choose strategy = periodic_average"
    )]
    NoPeriod { with: &'static str },
    #[error(
        "an outer step follows an average of replicas: with {with} choose outer = none, or strategy = periodic_average"
    )]
    NoOuterStep { with: &'static str },
    #[error("lead_max bounds the lead of a worker of parameter_server: omit it with {with}")]
    NoLead { with: &'static str },
    #[error("an update of parameter_server is always one worker's batch: choose rescale = none")]
    ServerRescale,
    #[error(
        "rescale = fixed_batch splits one total batch among members that exchange together: with {with} choose none, linear or smooth"
    )]
    FixedBatch { with: &'static str },
    #[error("open batches have no nominal size to follow: choose rescale = none or linear")]
    OpenRescale,
    #[error(
        "adascale compares gradients of equal batches: choose strategy = all_reduce and shares = even"
    )]
    AdascaleBatches,
    #[error("adascale reads the noise of exact gradients: choose codec = dense")]
    AdascaleCodec,
    #[error(
        "{with} sends whole replicas to single peers, which have no common point to encode a difference from: choose codec = dense"
    )]
    LossyReplicas { with: &'static str },
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// A model or a data set that does not exist, cannot be read, or does not fit the other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    #[error("samples = {samples}: {data} has {all} training samples, give 1 to {all}")]
    Samples { samples: u64, data: String, all: u64 },
    #[error("validation = {part}: give a part of the training data, from 0 to below 1")]
    Validation { part: f64 },
    #[error("{model} cannot learn a text: choose charlm")]
    NotForText { model: String },
    #[error("charlm learns texts: choose --data text, or the path of a .txt file")]
    OnlyForText,
    #[error(
        "{model} learns images of at least {side_min} x {side_min} pixels, not rows of {features} numbers: choose mlp, or data such as digits or cifar10"
    )]
    OnlyForImages { model: String, side_min: usize, features: usize },
    #[error(
        "the model quadratic and the data set noise belong together: {model} cannot learn {data}"
    )]
    QuadraticNeedsNoise { model: String, data: String },
    #[error("model = \"own\" and data = \"own\" belong together: a program of your own holds both")]
    HalfOwn,
    #[error(
        "this job is trained by a program of your own: start it with `paceline join HOST:PORT -- COMMAND`"
    )]
    OwnProgram,
    #[error(
        "this job names the model {model} and the data {data}: start its coordinator with --model own --data own"
    )]
    NotOwn { model: String, data: String },
    #[error(transparent)]
    Data(Box<LoadError>),
}

impl From<LoadError> for TaskError {
    fn from(error: LoadError) -> TaskError {
        TaskError::Data(Box::new(error))
    }
}

/// A scenario that does not exist, cannot be read, or is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// `from` is a path or a name.
    #[error("{from}: {source}")]
    InvalidFile { from: String, source: paceline_sim::ScenarioError },
    #[error(transparent)]
    Invalid(#[from] paceline_sim::ScenarioError),
}
