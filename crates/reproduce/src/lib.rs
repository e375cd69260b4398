//! Papers' claims, checked: an experiment file says what is run and what is claimed, and this room
//! runs it in the simulator, decides by the file's own rules, and draws what came out.

pub mod claims;
pub mod experiment;
pub mod experiments;
pub mod figures;
pub mod noise;
pub mod perform;
pub mod report;
pub mod result;
pub mod runs;
pub mod store;
mod summary;

pub use claims::{Finding, Verdict};
pub use experiment::Experiment;
pub use perform::{Progress, perform};
pub use result::{Measurement, Results};
pub use runs::{Limits, Run};
pub use store::Store;
