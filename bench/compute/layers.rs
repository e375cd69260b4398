//! Times each kind of layer of resnet20 and cnn alone, beside the peak of a core.
//!
//! A layer that is not the first of its network follows a pool of one pixel, a mere copy, so that it has to propagate a
//! gradient; it is followed by the mean over all pixels and two classes. Their time is included; the rows "nothing"
//! show it.

use paceline::learn::net::Builder;
use paceline::learn::{Extent, Net};

use crate::clock::{Spread, rate};
use crate::models::{BATCH, Training, noise};
use crate::peak;

/// The name of a layer, its input, and the function that adds it.
type Layer = (&'static str, Extent, fn(Builder) -> Builder);

const fn image(side: usize, channels: usize) -> Extent {
    Extent { height: side, width: side, channels }
}

const LAYERS: [Layer; 19] = [
    ("first conv 3x3, 28x28x1 to 16", image(28, 1), |b| b.conv(16, 3)),
    ("first conv 3x3, 32x32x3 to 16", image(32, 3), |b| b.conv(16, 3)),
    ("conv 3x3, 14x14x16 to 32", image(14, 16), |b| b.conv(32, 3)),
    ("conv 3x3, 32x32x16 to 16", image(32, 16), |b| b.conv(16, 3)),
    ("conv 3x3, 16x16x32 to 32", image(16, 32), |b| b.conv(32, 3)),
    ("conv 3x3, 8x8x64 to 64", image(8, 64), |b| b.conv(64, 3)),
    ("conv 3x3 by 2, 32x32x16 to 32", image(32, 16), |b| b.conv_by(32, 3, 2)),
    ("conv 3x3 by 2, 16x16x32 to 64", image(16, 32), |b| b.conv_by(64, 3, 2)),
    ("conv 1x1 by 2, 32x32x16 to 32", image(32, 16), |b| b.conv_by(32, 1, 2)),
    ("conv 1x1 by 2, 16x16x32 to 64", image(16, 32), |b| b.conv_by(64, 1, 2)),
    ("dense 1568 to 128", image(1, 1568), |b| b.dense(128)),
    ("nothing, 32x32x16", image(32, 16), |b| b),
    ("nothing, 8x8x64", image(8, 64), |b| b),
    ("group norm, 32x32x16", image(32, 16), |b| b.norm().relu()),
    ("group norm, 8x8x64", image(8, 64), |b| b.norm().relu()),
    ("batch norm, 32x32x16", image(32, 16), |b| b.with_batch_norm().norm().relu()),
    ("batch norm, 8x8x64", image(8, 64), |b| b.with_batch_norm().norm().relu()),
    ("max pool 2x2, 28x28x16", image(28, 16), |b| b.max_pool(2)),
    ("mean pool 8x8, 8x8x64", image(8, 64), |b| b.global_pool()),
];

const SECONDS: f64 = 0.2;

/// Prints a table of all layers. Each round measures every layer once, so that a disturbance does not hit one alone.
pub fn print(rounds: usize) {
    let mut all: Vec<Training> = LAYERS.iter().map(training).collect();
    let mut steps: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    let mut peaks: Vec<Vec<f64>> = steps.clone();
    for _ in 0..rounds {
        for (index, layer) in all.iter_mut().enumerate() {
            steps[index].push(rate(SECONDS, || layer.differentiate()).cpu);
            peaks[index].push(peak::rate().cpu);
        }
    }
    println!("\nlayers alone, forward and backward, {BATCH} samples, by CPU time");
    println!("{:<34} {:>14} {:>9} {:>14}", "layer", "us per sample", "GFLOP/s", "share of peak");
    for (index, (name, ..)) in LAYERS.iter().enumerate() {
        let flops = (BATCH as u64 * all[index].net.flops()) as f64;
        let each = 1e6 / BATCH as f64 / Spread::of(steps[index].iter().copied()).median;
        let share = Spread::of(steps[index].iter().zip(&peaks[index]).map(|(s, p)| s * flops / p));
        let pace = Spread::of(steps[index].iter().map(|steps| steps * flops / 1e9)).median;
        // Norms and pools are limited by memory, and their operations are not counted.
        match name.contains("conv") || name.starts_with("dense") {
            true => {
                println!("{name:<34} {each:>14.2} {pace:>9.1} {:>12.0} %", 100.0 * share.median)
            }
            false => println!("{name:<34} {each:>14.2} {:>9} {:>14}", "-", "-"),
        }
    }
}

fn training((name, extent, layer): &Layer) -> Training {
    let inputs = Net::new(*extent);
    let inputs = if name.starts_with("first") { inputs } else { inputs.mean_pool(1) };
    let net = layer(inputs).global_pool().classes(2);
    Training::of(net, noise(extent.len(), 2))
}
