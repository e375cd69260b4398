//! What the Python package `paceline` cannot do in Python: the engine, its memory, and the lines between workers and the user's
//! loop. Everything that users see is in `python/paceline`.
//!
//! No thread of the engine calls Python, except for the gradients of `fit`: a user's thread calls in, waits without the
//! interpreter's lock, and looks for signals while it waits.

mod ask;
mod cluster;
mod errors;
mod fit;
mod flat;
mod line;
mod news;
mod program;
mod run;
mod spec;

use pyo3::prelude::*;

#[pymodule]
mod _paceline {
    #[pymodule_export]
    use crate::ask::Ask;
    #[pymodule_export]
    use crate::cluster::{Member, Office, coordinate, look, member};
    #[pymodule_export]
    use crate::fit::fit;
    #[pymodule_export]
    use crate::flat::Flat;
    #[pymodule_export]
    use crate::line::Line;
    #[pymodule_export]
    use crate::program::{digits, main, recipes, version};
    #[pymodule_export]
    use crate::run::{Outcome, Run, simulate, threads};
    #[pymodule_export]
    use crate::spec::Order;
}
