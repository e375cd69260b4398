//! Checks the claims of papers: runs an experiment file in the simulator, decides each claim by the file's
//! own rules, and draws the results.

pub mod claims;
pub mod error;
pub mod execute;
pub mod experiment;
pub mod experiments;
pub mod figures;
pub mod noise;

pub mod report;
pub mod result;
pub mod runs;
pub mod store;
mod summary;

pub use claims::{Finding, Verdict};
pub use error::{DefinitionError, ExecuteError, ExperimentError, StoreError};
pub use execute::{Progress, RunContext, execute};
pub use experiment::Experiment;
pub use result::{Measurement, Results};
pub use runs::{Run, RunFilter};
pub use store::Store;
