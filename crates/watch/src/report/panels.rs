//! The panels of a run's page: loss, accuracy, learning rate, throughput, shares, bytes, members, staleness and strategy metrics.

use super::Report;
use super::shares::{ROUND, Shares};
use crate::axis::{Axis, time_unit};
use crate::curves::Point;
use crate::panel::{Panel, Stroke};
use crate::points::{DIVERGED, brief, shortened, smoothed, thinned};
use crate::table::count;
use crate::track::{Bin, Track};

/// Throughput, shares and staleness are averaged over at most this many pieces; finer ones would mostly show noise.
const PIECES: f64 = 64.0;

/// The maximal number of panels for strategy metrics.
const NOTES_MAX: usize = 6;

/// All panels for which there is data.
pub(super) fn all(report: &Report) -> Vec<Panel> {
    let mut panels = vec![
        loss(report, Across::Time),
        accuracy(report, Across::Time),
        loss(report, Across::Epochs),
        accuracy(report, Across::Epochs),
        rate(report),
        throughput(report),
        shares(report),
        bytes(report),
        members(report),
        staleness(report),
    ];
    panels.extend(report.curves.notes().take(NOTES_MAX).map(|name| note(report, name)));
    panels.into_iter().flatten().collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Across {
    Time,
    Epochs,
}

impl Across {
    fn axis(self, report: &Report) -> Axis {
        match self {
            Across::Time => time(report).0,
            Across::Epochs => {
                let curves = [report.curves.loss(), report.curves.accuracy()];
                let ends = curves.iter().filter_map(|points| points.last());
                Axis::linear("epochs", 0.0, ends.map(|point| point.epochs).fold(0.0, f64::max))
            }
        }
    }

    fn place(self, report: &Report) -> impl Fn(&Point) -> f64 {
        let (_, seconds) = time_unit(report.seconds());
        move |point| match self {
            Across::Time => point.at / seconds,
            Across::Epochs => point.epochs,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Across::Time => "time",
            Across::Epochs => "epochs",
        }
    }
}

/// The time axis, and the length of its unit in seconds.
fn time(report: &Report) -> (Axis, f64) {
    let (unit, seconds) = time_unit(report.seconds());
    (Axis::linear(format!("time, {unit}"), 0.0, report.seconds() / seconds), seconds)
}

/// Training loss, smoothed, and test loss.
fn loss(report: &Report, across: Across) -> Option<Panel> {
    let is_drawable = |point: &&Point| point.value.is_finite() && point.value > 0.0;
    let training = smoothed(report.curves.loss());
    let test: Vec<Point> = report.curves.test_loss().iter().filter(is_drawable).copied().collect();
    let first = training.first().or(test.first())?.value;
    let values = || training.iter().chain(&test).map(|point| point.value);
    let ceiling = values().fold(0.0, f64::max).min(DIVERGED * first);
    let lowest = values().fold(f64::MAX, f64::min).min(ceiling);
    let place = across.place(report);
    let mut strokes = vec![];
    for (look, (name, line)) in [("training", training), ("test", test)].into_iter().enumerate() {
        let Some(last) = line.last() else { continue };
        let label = format!("{name} {}", brief(last.value));
        let points = thinned(&line).iter().map(|point| (place(point), point.value)).collect();
        strokes.push(Stroke { label, look, points });
    }
    let y = Axis::logarithmic("loss (training: mean of 1/2 epoch), log", lowest, ceiling);
    Some(Panel {
        title: format!("Loss over {}", across.name()),
        x: across.axis(report),
        y,
        strokes,
    })
}

fn accuracy(report: &Report, across: Across) -> Option<Panel> {
    let is_drawable = |point: &&Point| point.value.is_finite();
    let points: Vec<Point> = report.curves.accuracy().iter().filter(is_drawable).copied().collect();
    let values = || points.iter().map(|point| 100.0 * point.value);
    let (low, high) = (values().fold(100.0, f64::min), values().fold(0.0, f64::max));
    // Without labels there is no accuracy.
    if high == 0.0 {
        return None;
    }
    let margin = 0.05 * (high - low).max(1.0);
    let y = Axis::linear("test accuracy, %", (low - margin).max(0.0), (high + margin).min(100.0));
    let label = format!("{:.1} %", 100.0 * points.last()?.value);
    let place = across.place(report);
    let points = thinned(&points).iter().map(|p| (place(p), 100.0 * p.value)).collect();
    let title = format!("Test accuracy over {}", across.name());
    let strokes = vec![Stroke { label, look: 0, points }];
    Some(Panel { title, x: across.axis(report), y, strokes })
}

fn rate(report: &Report) -> Option<Panel> {
    over_epochs(report, "Learning rate", "learning rate", report.curves.rate())
}

fn note(report: &Report, name: &str) -> Option<Panel> {
    let title = match name {
        "period" => "Period: local steps between averages".to_owned(),
        "variance" => "Variance of the replicas around their mean".to_owned(),
        name => format!("Strategy metric: {}", shortened(name, 40)),
    };
    over_epochs(report, &title, &shortened(name, 30), report.curves.note(name))
}

/// A line over epochs; the axis is logarithmic if the values span more than a factor of ten.
fn over_epochs(report: &Report, title: &str, name: &str, points: &[Point]) -> Option<Panel> {
    let is_drawable = |point: &&Point| point.value.is_finite();
    let points: Vec<Point> = points.iter().filter(is_drawable).copied().collect();
    let label = brief(points.last()?.value);
    let values = || points.iter().map(|point| point.value);
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    let y = if low > 0.0 && high > 10.0 * low {
        Axis::logarithmic(format!("{name}, log"), 0.9 * low, 1.1 * high)
    } else {
        Axis::linear(name, low.min(0.0), if high > 0.0 { 1.08 * high } else { 0.0 })
    };
    let place = Across::Epochs.place(report);
    let points = thinned(&points).iter().map(|point| (place(point), point.value)).collect();
    let strokes = vec![Stroke { label, look: 0, points }];
    Some(Panel { title: title.to_owned(), x: Across::Epochs.axis(report), y, strokes })
}

/// Samples applied per second, each measured over at least half an epoch.
fn throughput(report: &Report) -> Option<Panel> {
    let points = report.curves.loss();
    let mut from = *points.first()?;
    let reach = (points.last()?.epochs / PIECES).max(0.5);
    let (x, unit) = time(report);
    let mut paces = vec![];
    for point in points {
        if point.epochs - from.epochs >= reach && point.at > from.at {
            let samples = (point.epochs - from.epochs) * report.curves.samples_per_epoch() as f64;
            paces.push(((from.at + point.at) / 2.0 / unit, samples / (point.at - from.at)));
            from = *point;
        }
    }
    let highest = paces.iter().map(|(_, pace)| *pace).fold(0.0, f64::max);
    let label = count(paces.last()?.1 as u64);
    let strokes = vec![Stroke { label, look: 0, points: paces }];
    let y = Axis::linear("samples per second", 0.0, 1.05 * highest);
    Some(Panel { title: "Samples per second, all workers".to_owned(), x, y, strokes })
}

/// Each worker's share of the samples, by round for synchronous strategies, otherwise by time.
fn shares(report: &Report) -> Option<Panel> {
    let Shares { all, by_worker, .. } = &report.shares;
    let workers = report.computed.len();
    if workers < 2 {
        return None;
    }
    let (x, end, unit) = if report.shares.by_round() {
        let rounds = all.len() as f64 * all.seconds() / ROUND.as_secs_f64();
        (Axis::linear("rounds", 0.0, rounds), f64::MAX, ROUND.as_secs_f64())
    } else {
        let (axis, unit) = time(report);
        (axis, report.seconds(), unit)
    };
    let all = all.coarsened(all.len() as f64 * all.seconds() / PIECES);
    // Shares in an incomplete last piece depend on which worker came last.
    let last = all.len().saturating_sub(1);
    let is_cut = last > 0 && all.bin(last).sum < 0.5 * all.bin(last - 1).sum;
    let pieces = if is_cut { last } else { last + 1 };
    let is_there = |i: &usize| *i < pieces && all.bin(*i).count > 0;
    let mut strokes = vec![];
    for (look, (who, track)) in by_worker.iter().enumerate() {
        let track = track.coarsened(all.seconds());
        let first = (0..track.len()).find(|i| track.bin(*i).count > 0)?;
        let share = |i: usize| {
            let part = track.bin(i).sum / all.bin(i).sum;
            (((i as f64 + 0.5) * all.seconds()).min(end) / unit, 100.0 * part)
        };
        let lived = (first..track.len()).filter(is_there);
        let points: Vec<(f64, f64)> = lived.map(share).collect();
        strokes.push(Stroke { label: format!("worker {who}"), look, points });
    }
    strokes.retain(|stroke| !stroke.points.is_empty());
    let highest = strokes.iter().flat_map(|s| &s.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let y = Axis::linear("share of the samples, %", 0.0, (1.08 * highest).min(100.0));
    let title = match workers - by_worker.len() {
        0 => "Each worker's share of the samples".to_owned(),
        _ => format!("Shares of the samples: {} of {workers} workers", by_worker.len()),
    };
    (!strokes.is_empty()).then_some(Panel { title, x, y, strokes })
}

fn bytes(report: &Report) -> Option<Panel> {
    let total = report.bytes_total as f64;
    let (unit, size) = match total {
        0.0 => return None,
        ..2e3 => ("B", 1.0),
        ..2e6 => ("kB", 1e3),
        ..2e9 => ("MB", 1e6),
        ..2e12 => ("GB", 1e9),
        _ => ("TB", 1e12),
    };
    let (x, seconds) = time(report);
    let mut points = vec![(0.0, 0.0)];
    points.extend(
        report
            .bytes
            .bins()
            .map(|(_, to, bin)| (to.min(report.seconds()) / seconds, bin.last / size)),
    );
    let strokes = vec![Stroke { label: format!("{:.1} {unit}", total / size), look: 0, points }];
    let y = Axis::linear(format!("sent, {unit}"), 0.0, 1.05 * total / size);
    Some(Panel { title: "Bytes sent, all workers".to_owned(), x, y, strokes })
}

/// The number of members; omitted if it never changed.
fn members(report: &Report) -> Option<Panel> {
    let (low, high) = extremes(&report.members)?;
    if low == high {
        return None;
    }
    let (x, seconds) = time(report);
    let mut points: Vec<(f64, f64)> = vec![];
    for (from, _, bin) in report.members.bins() {
        let at = from / seconds;
        let before = points.last().map(|(_, members)| *members);
        points.extend(before.map(|members| (at, members)));
        // Views within the same pixel are drawn as a vertical line from the fewest to the most members.
        points.extend([(at, bin.high), (at, bin.low), (at, bin.last)]);
    }
    let last = points.last()?.1;
    points.push((report.seconds() / seconds, last));
    let strokes = vec![Stroke { label: format!("{last:.0}"), look: 0, points }];
    let y = Axis::linear("members", 0.0, 1.08 * high);
    Some(Panel { title: "Members over time".to_owned(), x, y, strokes })
}

/// Mean and maximum staleness; omitted if it is constant or at most 1.
fn staleness(report: &Report) -> Option<Panel> {
    let (low, high) = extremes(&report.staleness)?;
    if low == high || high <= 1.0 {
        return None;
    }
    let (x, seconds) = time(report);
    let track = report.staleness.coarsened(report.seconds() / PIECES);
    let line = |value: fn(&Bin) -> f64| -> Vec<(f64, f64)> {
        let at = |from: f64, to: f64| (from + to.min(report.seconds())) / 2.0 / seconds;
        track.bins().map(|(from, to, bin)| (at(from, to), value(&bin))).collect()
    };
    let strokes = [("max", line(|bin| bin.high)), ("mean", line(Bin::mean))];
    let strokes = strokes.into_iter().enumerate().map(|(look, (name, points))| {
        let last = points.last().map_or(0.0, |(_, staleness)| *staleness);
        Stroke { label: format!("{name} {last:.1}"), look, points }
    });
    let y = Axis::linear("updates", 0.0, 1.08 * high);
    let title = "Staleness of applied gradients".to_owned();
    Some(Panel { title, x, y, strokes: strokes.collect() })
}

fn extremes(track: &Track) -> Option<(f64, f64)> {
    let bins = || track.bins().map(|(_, _, bin)| bin);
    bins().next()?;
    let low = bins().map(|bin| bin.low).fold(f64::MAX, f64::min);
    Some((low, bins().map(|bin| bin.high).fold(f64::MIN, f64::max)))
}
