//! Compares runs in one drawing: training curves and worker timelines.

mod page;

use std::time::Duration;

use crate::axis::{Axis, time_unit};
use crate::bars::{Bars, IDS, legend, scale};
use crate::curves::Point;
use crate::panel::{MUTED, Panel, Place, Stroke, TARGET};
use crate::points::{DIVERGED, shortened, thinned};
use crate::svg::{BOLD, file, text};
use crate::table::{count, duration, number};
use crate::timeline::Timeline;

pub use page::comparison_page;

/// A run in a comparison.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub name: &'a str,
    /// As the run reports them: their last values are those of the table.
    pub loss: &'a [Point],
    /// From 0 to 1.
    pub accuracy: &'a [Point],
    pub timeline: &'a Timeline,
}

/// What losses and accuracies of a comparison were measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// Both on held-out samples, of the model that would be deployed.
    Validation,
    /// The loss on the samples that workers trained with, smoothed; the accuracy on the test set.
    Training,
}

impl Measured {
    fn loss(self) -> &'static str {
        match self {
            Measured::Validation => "validation loss",
            Measured::Training => "training loss",
        }
    }

    fn loss_axis(self) -> &'static str {
        match self {
            Measured::Validation => "validation loss, log",
            Measured::Training => "training loss (smoothed), log",
        }
    }

    fn accuracy(self) -> &'static str {
        match self {
            Measured::Validation => "validation accuracy",
            Measured::Training => "test accuracy",
        }
    }
}

/// What the runs are to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    Loss(f64),
    /// From 0 to 1.
    Accuracy(f64),
}

const WIDTH: f64 = 1280.0;
const MARGIN: f64 = 20.0;

const PANELS_TOP: f64 = 52.0;
const PANELS_HEIGHT: f64 = 350.0;

const WORKERS_MAX: usize = 12;
const PITCH: f64 = 9.0;

/// More lines than this cannot be told apart by color: then only the best have one.
const LINES_MAX: usize = 8;
const BEST: usize = 6;
const NAME_MAX: usize = 30;

/// Runs with the same curves, drawn as one.
struct Group<'a> {
    name: String,
    run: Run<'a>,
    look: usize,
}

/// A self-contained SVG that compares runs in virtual time, the best first. Runs with the same curves are drawn as one,
/// and of many runs only the best have a color.
pub fn comparison(title: &str, runs: &[Run], on: Measured, goal: Option<Goal>) -> String {
    let groups = groups(runs);
    let judged = Judged { on, goal };
    let width = (WIDTH - 3.0 * MARGIN) / 2.0;
    let left = Place { x: MARGIN, y: PANELS_TOP, width, height: PANELS_HEIGHT };
    let right = Place { x: 2.0 * MARGIN + width, ..left };
    let style = r#"font-size="17" font-weight="bold""#;
    let mut body = text(MARGIN, 30.0, style, &shortened(title, 120));
    for (panel, place, what) in [
        (judged.loss_over_time(&groups), left, on.loss()),
        (judged.second(&groups), right, on.accuracy()),
    ] {
        let nothing = || {
            let (x, y) = (place.x + MARGIN, place.y + PANELS_HEIGHT / 2.0);
            text(x, y, "", &format!("no {what} recorded"))
        };
        body += &panel.map_or_else(nothing, |panel| panel.svg(place));
    }
    let (timelines, bottom) = timelines(&groups, PANELS_TOP + PANELS_HEIGHT + 34.0);
    let height = (bottom + MARGIN).ceil();
    file(WIDTH, height, &(body + &timelines))
}

fn groups<'a>(runs: &[Run<'a>]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group> = vec![];
    for run in runs {
        let is_same = |group: &&mut Group| {
            let (one, other) = (&group.run, run);
            !run.loss.is_empty() && one.loss == other.loss && one.accuracy == other.accuracy
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.name = format!("{} = {}", group.name, run.name),
            None => groups.push(Group { name: run.name.to_owned(), run: *run, look: groups.len() }),
        }
    }
    if groups.len() > LINES_MAX {
        groups.iter_mut().skip(BEST).for_each(|group| group.look = MUTED);
    }
    groups
}

/// The time axis, and the length of its unit in seconds.
fn time(groups: &[Group]) -> (Axis, f64) {
    let end = end_of_all(groups);
    let (unit, seconds) = time_unit(end);
    (Axis::linear(format!("virtual time, {unit}"), 0.0, end / seconds), seconds)
}

/// How runs are judged.
#[derive(Clone, Copy)]
struct Judged {
    on: Measured,
    goal: Option<Goal>,
}

impl Judged {
    fn loss_over_time(self, groups: &[Group]) -> Option<Panel> {
        let (x, seconds) = time(groups);
        let end = end_of_all(groups) / seconds;
        self.loss_panel("over time", groups, (x, end), |point| point.at / seconds)
    }

    /// The accuracy over time, or the loss over epochs if there is no accuracy.
    fn second(self, groups: &[Group]) -> Option<Panel> {
        if groups.iter().any(|group| !group.run.accuracy.is_empty()) {
            return Some(self.accuracy_over_time(groups));
        }
        let ends = groups.iter().filter_map(|group| group.run.loss.last());
        let end = ends.map(|point| point.epochs).fold(0.0, f64::max);
        let x = Axis::linear("epochs", 0.0, end);
        self.loss_panel("over epochs", groups, (x, end), |point| point.epochs)
    }

    fn loss_panel(
        self,
        over: &str,
        groups: &[Group],
        (x, end): (Axis, f64),
        across: impl Fn(&Point) -> f64,
    ) -> Option<Panel> {
        let is_drawable = |point: &&Point| point.value.is_finite() && point.value > 0.0;
        let drawable = |group: &Group| group.run.loss.iter().filter(is_drawable).copied().collect();
        let lines: Vec<Vec<Point>> = groups.iter().map(drawable).collect();
        let wanted = match self.goal {
            Some(Goal::Loss(loss)) if loss > 0.0 => Some(loss),
            _ => None,
        };
        let values = || lines.iter().flatten().map(|point| point.value);
        let (lowest, highest) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        let firsts = lines.iter().filter_map(|line| line.first()).map(|point| point.value);
        // A diverging run must not compress the curves of the others.
        let ceiling = highest.min(DIVERGED * firsts.fold(0.0, f64::max));
        if highest == 0.0 {
            return None;
        }
        let stroke = |(group, line): (&Group, &Vec<Point>)| {
            let last = line.last()?.value;
            let diverged = last > ceiling || !group.run.loss.last()?.value.is_finite();
            let outside = line.iter().position(|point| diverged && point.value > ceiling);
            let line = thinned(&line[..outside.map_or(line.len(), |i| i + 1)]);
            let points = line.iter().map(|point| (across(point), point.value)).collect();
            let end = if diverged { "diverged".to_owned() } else { format!("{last:.4}") };
            let label = format!("{} {end}", shortened(&group.name, NAME_MAX));
            Some(Stroke { label, look: group.look, points })
        };
        // A target far away from all curves is not worth the space.
        let wanted = wanted.filter(|loss| (lowest / 3.0..=ceiling).contains(loss));
        let (lowest, ceiling) = (lowest.min(ceiling), ceiling);
        let lowest = wanted.map_or(lowest, |loss| lowest.min(loss));
        let mut strokes: Vec<Stroke> =
            wanted.map(|loss| target(loss, end, number(loss))).into_iter().collect();
        strokes.extend(groups.iter().zip(&lines).rev().filter_map(stroke));
        let y = Axis::logarithmic(self.on.loss_axis(), lowest, ceiling);
        Some(Panel { title: titled(self.on.loss(), over), x, y, strokes })
    }

    fn accuracy_over_time(self, groups: &[Group]) -> Panel {
        let (x, seconds) = time(groups);
        let is_drawable = |point: &&Point| point.value.is_finite();
        let all = || groups.iter().flat_map(|group| group.run.accuracy).filter(is_drawable);
        let wanted = match self.goal {
            Some(Goal::Accuracy(accuracy)) => Some(accuracy),
            _ => None,
        };
        let values = || all().map(|point| point.value).chain(wanted);
        let (lowest, highest) = (values().fold(1.0, f64::min), values().fold(0.0, f64::max));
        let margin = 0.03 * (highest - lowest).max(0.01);
        let (from, to) = ((lowest - margin).max(0.0), (highest + margin).min(1.0));
        let stroke = |group: &Group| {
            let drawn: Vec<Point> =
                group.run.accuracy.iter().filter(is_drawable).copied().collect();
            let place = |point: &Point| (point.at / seconds, 100.0 * point.value);
            let points: Vec<(f64, f64)> = thinned(&drawn).iter().map(place).collect();
            let label = format!("{} {:.1} %", shortened(&group.name, NAME_MAX), points.last()?.1);
            Some(Stroke { label, look: group.look, points })
        };
        let end = end_of_all(groups) / seconds;
        let line = |wanted: f64| target(100.0 * wanted, end, format!("{:.1} %", 100.0 * wanted));
        let mut strokes: Vec<Stroke> = wanted.map(line).into_iter().collect();
        strokes.extend(groups.iter().rev().filter_map(stroke));
        Panel {
            title: titled(self.on.accuracy(), "over time"),
            x,
            y: Axis::linear(format!("{}, %", self.on.accuracy()), 100.0 * from, 100.0 * to),
            strokes,
        }
    }
}

/// "training loss" becomes "Training loss over time".
fn titled(what: &str, over: &str) -> String {
    let (first, rest) = what.split_at(1);
    format!("{}{rest} {over}", first.to_uppercase())
}

/// A horizontal line at the target.
fn target(at: f64, end: f64, text: String) -> Stroke {
    Stroke { label: format!("target {text}"), look: TARGET, points: vec![(0.0, at), (end, at)] }
}

/// The timelines of the first rounds, two per row on the same scale, and the y coordinate of their lower edge.
fn timelines(runs: &[Group], top: f64) -> (String, f64) {
    let Some(until) = window(runs) else { return (String::new(), top - 34.0) };
    let length = duration(until.as_secs_f64());
    let title = format!("Worker timelines: the first {length} of virtual time");
    let mut svg = text(MARGIN, top, BOLD, &title);
    svg += &legend(WIDTH / 2.0 + MARGIN / 2.0, top);
    let (mut y, width) = (top + 26.0, (WIDTH - 3.0 * MARGIN) / 2.0);
    for pair in runs.chunks(2) {
        for (i, run) in pair.iter().enumerate() {
            let x = MARGIN + i as f64 * (width + MARGIN);
            let place = Place { x, y, width, height: 0.0 };
            svg += &timeline(run, place, until);
        }
        let rows = pair.iter().map(|group| group.run.timeline.workers().min(WORKERS_MAX)).max();
        y += rows.unwrap_or(0) as f64 * PITCH + 32.0;
    }
    let columns = runs.len().min(2);
    for i in 0..columns {
        let x = MARGIN + i as f64 * (width + MARGIN) + IDS;
        svg += &scale(x, y - 18.0, width - IDS, until.as_secs_f64());
    }
    (svg, y + 20.0)
}

/// Long enough for most runs to show their first dozen rounds, and short enough for all of them to be drawn in fine cells.
fn window(groups: &[Group]) -> Option<Duration> {
    let started =
        || groups.iter().map(|group| group.run.timeline).filter(|timeline| timeline.workers() > 0);
    let mut openings: Vec<Duration> = started().map(Timeline::opening).collect();
    openings.sort();
    let median = openings.get(openings.len() / 2)?;
    let until = started().map(Timeline::fine).fold(*median, Duration::min);
    (until > Duration::ZERO).then_some(until)
}

fn timeline(Group { name, run, .. }: &Group, place: Place, until: Duration) -> String {
    let Place { x, y, width, .. } = place;
    let workers = run.timeline.workers();
    let shown = match workers {
        ..=WORKERS_MAX => String::new(),
        _ => format!(": {WORKERS_MAX} of {} workers", count(workers as u64)),
    };
    let width = width - IDS;
    let bars = Bars { width, pitch: PITCH, workers_max: WORKERS_MAX, until: Some(until) };
    let name = shortened(name, 60) + &shown;
    let bars = run.timeline.svg(bars);
    let place = format!(r#"transform="translate({:.1} {y:.1})""#, x + IDS);
    text(x + IDS, y - 4.0, "", &name) + &format!("<g {place}>{bars}</g>")
}

fn end_of_all(groups: &[Group]) -> f64 {
    let end = |Group { run, .. }: &Group| {
        let curves = [run.loss, run.accuracy];
        let last = curves.into_iter().filter_map(|points| points.last()).map(|point| point.at);
        last.fold(run.timeline.now().as_secs_f64(), f64::max)
    };
    groups.iter().map(end).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
