//! A custom network in a few lines, trained on four threads of unequal speed.
//!
//! `cargo run --release --example own_net`

use std::sync::Arc;

use paceline::learn::{Dataset, Extent, Net, patterns};
use paceline::{Job, PrepareOptions, Task, TrainOptions, train};

fn main() -> Result<(), Box<dyn std::error::Error>> {
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
    let task = Task {
        model: Arc::new(net),
        train: Arc::new(images),
        validation: None,
        test: Arc::new(test),
    };

    let job = Job { strategy: "dbs".into(), epochs: 2.0, ..Job::default() };
    let prepared =
        job.prepare_with(PrepareOptions { task: Some(task), ..PrepareOptions::new(4) })?;
    let options = TrainOptions { speeds: vec![4.0, 4.0, 2.0, 1.0], ..TrainOptions::default() };
    let trained = train(&prepared, options)?;

    let result = trained.result;
    println!(
        "accuracy {:.1} % after {:.1} s; the slowest worker computed {:.0} % of the time",
        100.0 * result.accuracy,
        result.seconds(),
        100.0 * result.utilization.last().copied().unwrap_or(f64::NAN),
    );
    Ok(())
}
