//! A calibrated scenario as a file whose comments say where its numbers come from.

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
            "# What one sample takes the fastest worker: the pace at which threads emulate speeds. Computing it takes
# {} (fixed {} for each gradient), and at this pace all workers find a core in time.",
            micro(calibration.gradient.each),
            micro(calibration.gradient.fixed)
        )
    } else {
        format!(
            "# What one sample's gradient costs: the slope of a line through the medians of {} batch sizes, for a worker
# alone, times the number of workers that share a core.",
            calibration.gradients.len()
        )
    };
    let per_gradient = if is_paced {
        "# Nothing: what a gradient costs besides its samples is part of the pace."
    } else {
        "# What a gradient costs besides its samples: where that line begins, and what a worker does besides."
    };
    let handover = if is_paced {
        format!(
            "# By how much a gradient comes later than its pace says, whoever's it is: a sleeper wakes late, and
# threads hand over. {}, all workers at the same time. {} more are
# what a worker does besides.",
            spread(&calibration.handover),
            micro(calibration.housekeeping())
        )
    } else {
        "# Nothing: threads that emulate no speed hand over within the cost of a gradient."
            .to_owned()
    };
    let relative: Vec<String> = compute.relative.iter().map(|x| format!("{x:?}")).collect();
    let sums = match network.sums {
        RingModel::Messages => "messages",
        RingModel::ClosedForm => "closed_form",
    };
    format!(
        "\
# Measured by `paceline calibrate`: threads of {processor} ({cores} cores), {subject}, batch {batch}.
# Good for this job on this machine; measure again for another.

name = {name}
description = {description}

# How many workers there are; their ids are 0 to {last}.
workers = {workers}

[compute]
{per_sample}
seconds_per_sample = {seconds_per_sample:e}
{per_gradient}
seconds_per_gradient = {seconds_per_gradient:e}
# What an update costs, for each of {params} parameters. {update} for all of them.
seconds_per_param = {seconds_per_param:e}
{handover}
seconds_per_handover = {seconds_per_handover:e}
# Each worker's seconds per sample relative to the above.
relative = [{relative}]

[network]
# Threads have no wires. A ring of {members} on such wires takes as long as an exchange of {members} threads did, from the last
# one's entering until all had woken up: {exchange_fixed} for any vector ...
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

/// What a user or a machine is called must not end the comment that it stands in.
fn comment(text: &str) -> String {
    text.replace(char::is_control, " ")
}
