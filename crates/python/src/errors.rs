//! Errors of the engine as exceptions of the package's own types.

use paceline_job::Error;
use pyo3::prelude::*;

/// The exception for an error: `Refused` if the request was wrong, else `PacelineError`.
pub fn exception(error: &Error) -> PyErr {
    let name = if error.is_usage() { "Refused" } else { "PacelineError" };
    named(name, error.to_string())
}

pub fn refused(message: impl Into<String>) -> PyErr {
    named("Refused", message.into())
}

pub fn failed(message: impl Into<String>) -> PyErr {
    named("PacelineError", message.into())
}

/// The types are Python's, because an exception of two bases cannot be made here.
fn named(name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("paceline.errors")
            .and_then(|module| module.getattr(name))
            .and_then(|exception| exception.call1((message,)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}
