//! Why a scenario cannot be simulated.

/// A mistake in a scenario: the message names the field and says what to write instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    #[error("workers = 0: a cluster needs at least one worker")]
    NoWorkers,
    #[error("{field} = {worker}: there is no such worker, their ids are 0 to {last}")]
    NoSuchWorker { field: &'static str, worker: u32, last: u32 },
    #[error("{field} = {workers}: give at most {max}")]
    TooManyWorkers { field: &'static str, workers: u32, max: u32 },
    #[error("{field} = 0: at least one worker must stay")]
    NoWorkerStays { field: &'static str },
    #[error("{field} = {value}: give a number above zero")]
    NotPositive { field: &'static str, value: f64 },
    #[error("{field} = {value}: give a number from {min:e} to {max:e}")]
    OutOfRange { field: &'static str, value: f64, min: f64, max: f64 },
    #[error("{field} = {value}: give a number from 0 to below 1e9")]
    OutOfTimeRange { field: &'static str, value: f64 },
    #[error("{field} = {value}: give a number from 0 to 1")]
    NotAProbability { field: &'static str, value: f64 },
    #[error("{field}: from = {from} must be less than to = {to}")]
    EndsBeforeItStarts { field: &'static str, from: f64, to: f64 },
    #[error("compute.relative is empty: give at least one number, e.g. [1.0]")]
    NoRelativeSpeeds,
    #[error(
        "compute.disturbance: factor and lasts are [min, max]: give the smaller number first, and at least 1 for lasts"
    )]
    DisturbanceRange,
    #[error("network.rack: worker {worker} is in two racks: keep it in one")]
    WorkerInTwoRacks { worker: u32 },
    #[error(
        "network.sums = \"closed_form\" cannot model racks, which share a link: use \"messages\""
    )]
    ClosedFormWithRacks,
    #[error(
        "coordinator.members_max is below coordinator.members_min, or 0: give a range of at least one number"
    )]
    MembersRange,
    #[error("size: both at and at_epoch are set: give one of them")]
    SizeAtTwoTimes,
}
