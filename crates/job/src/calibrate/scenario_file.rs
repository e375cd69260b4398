//! A calibrated scenario as TOML, with comments that say where its numbers come from.

use paceline_sim::Scenario;
use paceline_sim::scenario::RingModel;

use super::{Calibration, Spread};

/// The scenario as TOML.
pub fn toml(calibration: &Calibration, scenario: &Scenario) -> String {
    let Calibration { cores, params, batch, members, .. } = calibration;
    let (compute, network) = (&scenario.compute, &scenario.network);
    let subject = comment(&format!("{} on {}", calibration.model, calibration.data));
    let is_paced = compute.seconds_per_handover > 0.0;
    let per_sample = if is_paced {
        format!(
            "# Time per sample of the fastest worker: the pace at which threads emulate speeds. Computing a sample takes
# {} (plus {} per gradient); at this pace there are enough cores for all workers.",
            micro(calibration.gradient.each),
            micro(calibration.gradient.fixed)
        )
    } else {
        format!(
            "# Time per sample of a gradient: the slope of a line through the medians of {} batch sizes, for a single
# worker, times the number of workers per core.",
            calibration.gradients.len()
        )
    };
    let per_gradient = if is_paced {
        "# Zero: the fixed time of a gradient is part of the pace."
    } else {
        "# Fixed time of a gradient: the intercept of that line, and the work between gradients."
    };
    let handover = if is_paced {
        format!(
            "# How much longer a gradient takes than its pace: sleeping overshoots, and threads take time to hand it
# over. {}, all workers at the same time. {} more are
# the work between gradients.",
            spread(&calibration.handover),
            micro(calibration.housekeeping())
        )
    } else {
        "# Zero: without emulated speeds the handover is part of the time of a gradient.".to_owned()
    };
    let relative: Vec<String> = compute.relative.iter().map(|x| format!("{x:?}")).collect();
    let sums = match network.sums {
        RingModel::Auto => "auto",
        RingModel::Messages => "messages",
        RingModel::ClosedForm => "closed_form",
    };
    format!(
        "\
# Measured by `paceline calibrate`: threads of {processor} ({cores} cores), {subject}, batch {batch}.
# Valid for this job on this machine; measure again for another.

name = {name}
description = {description}

# The number of workers; their ids are 0 to {last}.
workers = {workers}

[compute]
{per_sample}
seconds_per_sample = {seconds_per_sample:e}
{per_gradient}
seconds_per_gradient = {seconds_per_gradient:e}
# Time of an update per parameter. {update} for all {params}.
seconds_per_param = {seconds_per_param:e}
# Time that a lossy codec takes per parameter and exchange. {encoding} for all {params}, with QSGD at 8 bits.
seconds_per_encoded = {seconds_per_encoded:e}
{handover}
seconds_per_handover = {seconds_per_handover:e}
# Each worker's seconds per sample relative to the above.
relative = [{relative}]

[network]
# Threads have no network. On this one, a ring of {members} takes as long as an exchange of {members} threads, measured from the
# last entry until all threads have the sum: {exchange_fixed} for any vector ...
latency = {latency:e}
# ... and {exchange_whole} more for one of {params} parameters.
bytes_per_second = {bytes_per_second:e}
# Sums are simulated message by message.
sums = \"{sums}\"
",
        processor = comment(&calibration.processor),
        name = quoted(&scenario.name),
        description = quoted(&scenario.description),
        last = scenario.workers.saturating_sub(1),
        workers = scenario.workers,
        seconds_per_sample = compute.seconds_per_sample,
        seconds_per_gradient = compute.seconds_per_gradient,
        seconds_per_param = compute.seconds_per_param,
        seconds_per_encoded = compute.seconds_per_encoded,
        encoding = spread(&calibration.encoding),
        seconds_per_handover = compute.seconds_per_handover,
        update = spread(&calibration.update),
        relative = relative.join(", "),
        exchange_fixed = micro(calibration.exchange.fixed),
        exchange_whole = micro(4.0 * *params as f64 * calibration.exchange.each),
        latency = network.latency,
        bytes_per_second = network.bytes_per_second,
    )
}

fn spread(spread: &Spread) -> String {
    let Spread { median, low, high, repeats, .. } = *spread;
    format!("Median {} ({} to {}) of {repeats}", micro(median), micro(low), micro(high))
}

fn micro(seconds: f64) -> String {
    format!("{:.1} us", 1e6 * seconds)
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Names must not contain a line break, which would end the comment.
fn comment(text: &str) -> String {
    text.replace(char::is_control, " ")
}
