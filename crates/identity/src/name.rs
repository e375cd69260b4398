//! What a certificate says about its owner: the job, and the role in it. It stands there as one URI.

use std::fmt;
use std::str::FromStr;

use paceline_runtime::WorkerId;
use serde::{Deserialize, Serialize};

/// The name of a job: lower-case letters, digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub job: JobName,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Coordinator,
    Worker(WorkerId),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error(
        "'{0}' is no name for a job: it must be 1 to 64 lower-case letters, digits and hyphens"
    )]
    Job(String),
    #[error("'{0}' names neither a coordinator nor a worker")]
    Name(String),
}

const LENGTH_MAX: usize = 64;
const SCHEME: &str = "paceline://";

impl JobName {
    /// A name that no other job has.
    pub fn random() -> JobName {
        JobName(crate::hex::encode(&crate::random::<8>()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for JobName {
    type Error = NameError;

    fn try_from(text: String) -> Result<JobName, NameError> {
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        match !text.is_empty() && text.len() <= LENGTH_MAX && text.chars().all(is_allowed) {
            true => Ok(JobName(text)),
            false => Err(NameError::Job(text)),
        }
    }
}

impl From<JobName> for String {
    fn from(job: JobName) -> String {
        job.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Coordinator => write!(f, "{SCHEME}{}/coordinator", self.job),
            Role::Worker(who) => write!(f, "{SCHEME}{}/worker/{who}", self.job),
        }
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let unknown = || NameError::Name(text.to_owned());
        let (job, role) =
            text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')).ok_or_else(unknown)?;
        let job = JobName::try_from(job.to_owned())?;
        let role = match role.split_once('/') {
            None if role == "coordinator" => Role::Coordinator,
            Some(("worker", id)) => Role::Worker(WorkerId(id.parse().map_err(|_| unknown())?)),
            _ => return Err(unknown()),
        };
        let name = Name { job, role };
        // One name has one spelling: "worker/+7" and "worker/07" are refused.
        if name.to_string() == text { Ok(name) } else { Err(unknown()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        for text in [
            "paceline://mnist-2/coordinator",
            "paceline://a/worker/0",
            "paceline://a/worker/4294967295",
        ] {
            assert_eq!(text.parse::<Name>().map(|name| name.to_string()).as_deref(), Ok(text));
        }
        for text in [
            "",
            "paceline://",
            "paceline:///coordinator",
            "paceline://a",
            "paceline://a/",
            "paceline://A/coordinator",
            "paceline://a/worker",
            "paceline://a/worker/",
            "paceline://a/worker/07",
            "paceline://a/worker/+7",
            "paceline://a/worker/4294967296",
            "paceline://a/worker/1/2",
            "paceline://a/coordinator/",
            "http://a/coordinator",
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }
}
