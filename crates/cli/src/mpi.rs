//! Training on the ranks of an MPI job, which a launcher such as `mpirun` has started.

#[cfg(feature = "mpi")]
mod ranks;

use clap::{Args, ValueEnum};
#[cfg(feature = "mpi")]
pub use ranks::run_on_ranks;

#[derive(Args)]
pub struct ClusterFlags {
    /// Train on the ranks that mpirun or srun has started, one worker each
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["workers", "faults"])]
    pub cluster: Option<Cluster>,
    /// How ranks add gradients: in-order, with the bits of all other clusters, or by MPI, for networks that add on their way
    /// [default: in-order]
    #[arg(long, value_enum, value_name = "HOW", requires = "cluster")]
    pub sums: Option<SumsBy>,
}

// Help texts of values would make every flag of the command take a paragraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cluster {
    Mpi,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SumsBy {
    #[default]
    InOrder,
    Mpi,
}

/// Whether this process is another rank than the first, as far as its launcher says before MPI is there.
pub fn is_follower() -> bool {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];
    let rank = variables.into_iter().find_map(|name| std::env::var(name).ok());
    rank.and_then(|rank| rank.parse::<u32>().ok()).is_some_and(|rank| rank > 0)
}
