//! A network of one's own in a few lines, trained on four threads of unequal speed.
//!
//! `cargo run --release --example own_net`

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use paceline::job::threads::{ThreadOptions, train};
use paceline::learn::{Dataset, Extent, Net, patterns};
use paceline::{Job, PrepareOptions, Task};

fn main() -> Result<(), paceline::Error> {
    let extent = Extent { height: 16, width: 16, channels: 1 };
    let (images, test) = (patterns(2_000, extent, 4, 1), patterns(500, extent, 4, 2));
    let net = Net::new(extent)
        .conv(8, 3)
        .norm()
        .relu()
        .residual(|branch| branch.conv_by(16, 3, 2).norm().relu().conv(16, 3).norm())
        .relu()
        .global_pool()
        .classes(images.classes());
    let task = Task { model: Arc::new(net), train: Arc::new(images), test: Arc::new(test) };

    let job = Job { strategy: "dbs".into(), epochs: 2.0, ..Job::default() };
    let prepared =
        job.prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(4) })?;
    let setting = ThreadOptions { speeds: vec![4.0, 4.0, 2.0, 1.0], pace: None };
    let trained = train(&prepared, setting, Arc::new(AtomicBool::new(false)), vec![])?;

    let outcome = trained.result;
    println!(
        "accuracy {:.1} % after {:.1} s; the slowest worker computed {:.0} % of the time",
        100.0 * outcome.accuracy,
        outcome.seconds(),
        100.0 * outcome.utilization.last().copied().unwrap_or(f64::NAN),
    );
    Ok(())
}
