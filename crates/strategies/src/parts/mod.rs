//! The pure ingredients of strategies: small values with one operation each, tested by tables.

pub mod batches;
pub mod outer;
pub mod period;
pub mod shares;
pub mod window;

pub use batches::{Batches, Every, Shares};
pub use outer::{Outer, OuterStep};
pub use period::{Adaptive, Clock, Period};
pub use shares::{Speeds, grain, largest_remainder, proportional};
pub use window::Window;
