//! Compares runs in one drawing: training curves and worker timelines.

use std::time::Duration;

use crate::axis::{Axis, time_unit};
use crate::bars::{Bars, IDS, legend, scale};
use crate::curves::{Curves, Point};
use crate::panel::{Panel, Place, Stroke};
use crate::points::{DIVERGED, brief, shortened, smoothed, thinned};
use crate::svg::{BOLD, file, text};
use crate::table::{count, duration};
use crate::timeline::Timeline;

/// A run in a comparison.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub name: &'a str,
    pub curves: &'a Curves,
    pub timeline: &'a Timeline,
}

const WIDTH: f64 = 1280.0;
const MARGIN: f64 = 20.0;

const PANELS_TOP: f64 = 52.0;
const PANELS_HEIGHT: f64 = 350.0;
const LOSS_TITLE: &str = "training loss (mean of 1/2 epoch), log";

const WORKERS_MAX: usize = 12;
const PITCH: f64 = 9.0;

/// A self-contained SVG that compares runs; legible up to 16 of them.
pub fn comparison(title: &str, runs: &[Run]) -> String {
    let width = (WIDTH - 3.0 * MARGIN) / 2.0;
    let left = Place { x: MARGIN, y: PANELS_TOP, width, height: PANELS_HEIGHT };
    let right = Place { x: 2.0 * MARGIN + width, ..left };
    let style = r#"font-size="17" font-weight="bold""#;
    let mut body = text(MARGIN, 30.0, style, &shortened(title, 120));
    for (panel, place, what) in
        [(loss_over_time(runs), left, "training loss"), (second(runs), right, "test accuracy")]
    {
        let nothing = || {
            let (x, y) = (place.x + MARGIN, place.y + PANELS_HEIGHT / 2.0);
            text(x, y, "", &format!("no {what} recorded"))
        };
        body += &panel.map_or_else(nothing, |panel| panel.svg(place));
    }
    let (timelines, bottom) = timelines(runs, PANELS_TOP + PANELS_HEIGHT + 34.0);
    let height = (bottom + MARGIN).ceil();
    file(WIDTH, height, &(body + &timelines))
}

fn loss_over_time(runs: &[Run]) -> Option<Panel> {
    let (unit, seconds) = time_unit(end_of_all(runs));
    let x = Axis::linear(format!("time, {unit}"), 0.0, end_of_all(runs) / seconds);
    loss_panel("Training loss over time", runs, x, |point| point.at / seconds)
}

/// Test accuracy over time, or training loss over epochs if no run was evaluated.
fn second(runs: &[Run]) -> Option<Panel> {
    if runs.iter().any(|run| !run.curves.accuracy().is_empty()) {
        return Some(accuracy_over_time(runs));
    }
    let ends = runs.iter().filter_map(|run| run.curves.loss().last());
    let x = Axis::linear("epochs", 0.0, ends.map(|point| point.epochs).fold(0.0, f64::max));
    loss_panel("Training loss over epochs", runs, x, |point| point.epochs)
}

fn loss_panel(title: &str, runs: &[Run], x: Axis, across: impl Fn(&Point) -> f64) -> Option<Panel> {
    let lines: Vec<Vec<Point>> = runs.iter().map(|run| smoothed(run.curves.loss())).collect();
    let values = || lines.iter().flatten().map(|point| point.value);
    let (lowest, highest) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    let firsts = lines.iter().filter_map(|line| line.first()).map(|point| point.value);
    // A diverging run must not compress the curves of the others.
    let ceiling = highest.min(DIVERGED * firsts.fold(0.0, f64::max));
    if highest == 0.0 {
        return None;
    }
    let stroke = |(look, (run, line)): (usize, (&Run, &Vec<Point>))| {
        let last = line.last()?.value;
        let diverged = last > ceiling || !run.curves.loss().last()?.value.is_finite();
        let outside = line.iter().position(|point| diverged && point.value > ceiling);
        let line = thinned(&line[..outside.map_or(line.len(), |i| i + 1)]);
        let points = line.iter().map(|point| (across(point), point.value)).collect();
        let end = if diverged { "diverged".to_owned() } else { brief(last) };
        let label = format!("{} {end}", shortened(run.name, 22));
        Some(Stroke { label, look, points })
    };
    let strokes = runs.iter().zip(&lines).enumerate().filter_map(stroke).collect();
    let y = Axis::logarithmic(LOSS_TITLE, lowest.min(ceiling), ceiling);
    Some(Panel { title: title.to_owned(), x, y, strokes })
}

fn accuracy_over_time(runs: &[Run]) -> Panel {
    let (unit, seconds) = time_unit(end_of_all(runs));
    let is_drawable = |point: &&Point| point.value.is_finite();
    let all = || runs.iter().flat_map(|run| run.curves.accuracy()).filter(is_drawable);
    let lowest = all().map(|point| point.value).fold(1.0, f64::min);
    let highest = all().map(|point| point.value).fold(0.0, f64::max);
    let margin = 0.03 * (highest - lowest).max(0.01);
    let (from, to) = ((lowest - margin).max(0.0), (highest + margin).min(1.0));
    let stroke = |(look, run): (usize, &Run)| {
        let scores = run.curves.accuracy();
        let drawn: Vec<Point> = scores.iter().filter(is_drawable).copied().collect();
        let place = |point: &Point| (point.at / seconds, 100.0 * point.value);
        let points: Vec<(f64, f64)> = thinned(&drawn).iter().map(place).collect();
        let label = format!("{} {:.1} %", shortened(run.name, 22), points.last()?.1);
        Some(Stroke { label, look, points })
    };
    Panel {
        title: "Test accuracy over time".to_owned(),
        x: Axis::linear(format!("time, {unit}"), 0.0, end_of_all(runs) / seconds),
        y: Axis::linear("test accuracy, %", 100.0 * from, 100.0 * to),
        strokes: runs.iter().enumerate().filter_map(stroke).collect(),
    }
}

/// The timelines of the first rounds, two per row on the same scale, and the y coordinate of their lower edge.
fn timelines(runs: &[Run], top: f64) -> (String, f64) {
    let Some(until) = window(runs) else { return (String::new(), top - 34.0) };
    let title = format!("Worker timelines: the first {}", duration(until.as_secs_f64()));
    let mut svg = text(MARGIN, top, BOLD, &title);
    svg += &legend(WIDTH / 2.0 + MARGIN / 2.0, top);
    let (mut y, width) = (top + 26.0, (WIDTH - 3.0 * MARGIN) / 2.0);
    for pair in runs.chunks(2) {
        for (i, run) in pair.iter().enumerate() {
            let x = MARGIN + i as f64 * (width + MARGIN);
            let place = Place { x, y, width, height: 0.0 };
            svg += &timeline(run, place, until);
        }
        let rows = pair.iter().map(|run| run.timeline.workers().min(WORKERS_MAX)).max();
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
fn window(runs: &[Run]) -> Option<Duration> {
    let started = || runs.iter().map(|run| run.timeline).filter(|timeline| timeline.workers() > 0);
    let mut openings: Vec<Duration> = started().map(Timeline::opening).collect();
    openings.sort();
    let median = openings.get(openings.len() / 2)?;
    let until = started().map(Timeline::fine).fold(*median, Duration::min);
    (until > Duration::ZERO).then_some(until)
}

fn timeline(run: &Run, place: Place, until: Duration) -> String {
    let Place { x, y, width, .. } = place;
    let workers = run.timeline.workers();
    let shown = match workers {
        ..=WORKERS_MAX => String::new(),
        _ => format!(": {WORKERS_MAX} of {} workers", count(workers as u64)),
    };
    let width = width - IDS;
    let bars = Bars { width, pitch: PITCH, workers_max: WORKERS_MAX, until: Some(until) };
    let name = shortened(run.name, 60) + &shown;
    let bars = run.timeline.svg(bars);
    let place = format!(r#"transform="translate({:.1} {y:.1})""#, x + IDS);
    text(x + IDS, y - 4.0, "", &name) + &format!("<g {place}>{bars}</g>")
}

fn end_of_all(runs: &[Run]) -> f64 {
    let end = |run: &Run| {
        let curves = [run.curves.loss(), run.curves.accuracy()];
        let last = curves.into_iter().filter_map(|points| points.last()).map(|point| point.at);
        last.fold(run.timeline.now().as_secs_f64(), f64::max)
    };
    runs.iter().map(end).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use paceline_runtime::{Line, Reader, Record, Spans, WorkerId};

    use super::*;
    use crate::testing::is_well_formed;

    /// Two workers, 30 rounds of 10 ms and 20 samples, in epochs of 100.
    fn read(loss: impl Fn(u64) -> f64, scored: bool) -> (Curves, Timeline) {
        let (mut curves, mut timeline) = (Curves::default(), Timeline::default());
        let mut read = |milliseconds: u64, record: Record| {
            let line = Line { at: Duration::from_millis(milliseconds), record };
            curves.read(&line);
            timeline.read(&line);
        };
        let began = Record::Began {
            version: 1,
            strategy: "any".to_owned(),
            seed: 1,
            samples_total: 600,
            samples_per_epoch: 100,
            model: String::new(),
            data: String::new(),
            params: 3,
            kernels: String::new(),
            together: true,
            central: false,
        };
        read(0, began);
        for round in 0..30 {
            let (start, end) = (10 * round, 10 * round + 10);
            for who in [WorkerId(0), WorkerId(1)] {
                let since = Duration::from_millis(start);
                read(
                    start + 6,
                    Record::Computed { who, since, samples: 10, round: None, spans: None },
                );
                let (spans, loss_sum) =
                    (Spans::one(20 * round, 20 * round + 20), 20.0 * loss(round));
                let (version, staleness, rate) = (round, 0, 0.1);
                read(
                    end,
                    Record::Applied {
                        who,
                        version,
                        spans,
                        loss_sum,
                        weight: None,
                        staleness,
                        rate,
                        round: None,
                        result: None,
                    },
                );
                read(end, Record::Committed { who, round, fingerprint: None });
            }
            if scored {
                let accuracy = 0.5 + 0.01 * round as f64;
                read(end, Record::Scored { samples: 20 * (round + 1), loss: 1.0, accuracy });
            }
        }
        (curves, timeline)
    }

    fn draw(read: &[(&str, (Curves, Timeline))]) -> String {
        let run = |(name, (curves, timeline))| Run { name, curves, timeline };
        let parts = read.iter().map(|(name, (curves, timeline))| (*name, (curves, timeline)));
        comparison("a < b", &parts.map(run).collect::<Vec<_>>())
    }

    #[test]
    fn any_number_of_runs_gives_a_well_formed_drawing() {
        let nothing = || (Curves::default(), Timeline::default());
        let one = || read(|round| 2.0 / (1 + round) as f64, true);
        let many: Vec<_> = (0..16).map(|_| ("same name", one())).collect();
        let cases =
            [vec![], vec![("nothing", nothing())], vec![("one", one()), ("no", nothing())], many];

        for case in &cases {
            let svg = draw(case);

            assert!(is_well_formed(&svg), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn names_are_escaped_and_lines_are_labeled_with_their_ends() {
        let svg = draw(&[("<&>", read(|_| 0.25, true))]);

        for text in
            ["a &lt; b", "&lt;&amp;&gt; 0.250", "&lt;&amp;&gt; 79.0 %", "Test accuracy over time"]
        {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
    }

    #[test]
    fn without_scores_the_loss_is_drawn_over_epochs() {
        let svg = draw(&[("run", read(|_| 0.25, false))]);

        assert!(svg.contains("Training loss over epochs") && svg.contains(">epochs<"), "{svg}");
    }

    #[test]
    fn a_diverging_run_is_labeled_and_does_not_compress_the_others() {
        let cases = [
            read(|round| 2.0 * 10f64.powi(round as i32), false),
            read(|round| if round < 9 { 2.0 } else { f64::NAN }, false),
        ];

        for bad in cases {
            let svg = draw(&[("bad", bad), ("good", read(|_| 0.25, false))]);

            assert!(svg.contains("bad diverged") && svg.contains("good 0.250"), "{svg}");
            assert!(is_well_formed(&svg) && !svg.contains("1e9") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn bars_show_the_first_dozen_rounds() {
        let svg = draw(&[("run", read(|_| 0.25, false))]);

        assert!(svg.contains("Worker timelines: the first 120 ms"), "{svg}");
    }
}
