//! What can go wrong between ranks. Each of these ends the job: the ranks of an MPI job are fixed.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    #[error("MPI is used already in this process, or has ended")]
    Used,
    #[error(
        "this MPI library lets only its main thread call it: use one that grants MPI_THREAD_SERIALIZED or more"
    )]
    Threads,
    #[error("{call} failed: {text}")]
    Call { call: &'static str, text: String },
    #[error(
        "an exchange has {numbers} numbers, and MPI counts at most {most}: train it with --processes or `paceline coordinate`"
    )]
    TooLong { numbers: usize, most: usize },
    #[error("rank {rank} sent what no rank of this version sends: {what}")]
    Violation { rank: usize, what: String },
    #[error("rank {rank} takes no messages: {bytes} bytes wait for it")]
    Full { rank: usize, bytes: u64 },
}
