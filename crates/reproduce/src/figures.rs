//! Draws what an experiment asks to be drawn: means over the seeds, and their range.

use std::sync::Arc;

use paceline_watch::figure::{Bar, Drawing, Figure as Drawn, Line, Scale, Spot};

use crate::claims::evaluate;
use crate::experiment::{Experiment, Figure, Kind, belongs};
use crate::result::{Results, RunResult};

/// The figures of this size.
pub fn draw(
    experiment: &Experiment,
    size: &str,
    seeds: &[u64],
    results: &Arc<Results>,
) -> Result<Vec<Drawn>, String> {
    let figures = experiment.figures.iter().filter(|figure| belongs(&figure.sizes, size));
    figures
        .map(|figure| {
            let drawing = match figure.kind {
                Kind::Curves => curves(figure, seeds, results)?,
                Kind::Bars => bars(figure, seeds, results)?,
                Kind::Points => points(figure, seeds, results)?,
            };
            Ok(Drawn { title: figure.title.clone(), caption: figure.caption.clone(), drawing })
        })
        .collect::<Result<_, String>>()
        .map_err(|sentence: String| format!("figure: {sentence}"))
}

fn y(figure: &Figure) -> Scale {
    let label = if figure.y_label.is_empty() { &figure.y } else { &figure.y_label };
    Scale { label: label.clone(), logarithmic: figure.y_logarithmic }
}

fn x(figure: &Figure) -> Scale {
    Scale { label: figure.x.clone(), logarithmic: figure.x_logarithmic }
}

fn curves(figure: &Figure, seeds: &[u64], results: &Results) -> Result<Drawing, String> {
    let column = match figure.x.as_str() {
        "seconds" => 0,
        "epochs" => 1,
        other => {
            return Err(format!("\"{}\": x = \"{other}\": give seconds or epochs", figure.title));
        }
    };
    let line = |run: &String| {
        let of = |seed: &u64| results.get(run, *seed)?.curves.get(&figure.y);
        let curves: Vec<&Vec<[f64; 3]>> = seeds.iter().filter_map(of).collect();
        // Seeds have their points at the same samples; a run that broke off has fewer.
        let len = curves.iter().map(|curve| curve.len()).min().unwrap_or(0);
        let spot = |i: usize| {
            let values: Vec<f64> = curves.iter().map(|curve| curve[i][2]).collect();
            let x = curves.iter().map(|curve| curve[i][column]).sum::<f64>() / curves.len() as f64;
            spot(x, &values)
        };
        Line { label: run.clone(), points: (0..len).map(spot).collect() }
    };
    let lines = figure.runs.iter().map(line).filter(|line| !line.points.is_empty()).collect();
    let mut x = x(figure);
    if column == 0 {
        x.label = "virtual seconds".into();
    }
    Ok(Drawing::Lines { x, y: y(figure), lines })
}

fn bars(figure: &Figure, seeds: &[u64], results: &Arc<Results>) -> Result<Drawing, String> {
    let bar = |series: &String| {
        let values = figure.groups.iter().map(|group| value(figure, series, group, seeds, results));
        Ok(Bar { label: series.clone(), values: values.collect::<Result<_, String>>()? })
    };
    let series = figure.series.iter().map(bar).collect::<Result<Vec<_>, String>>()?;
    // What this size has no runs of is not there, rather than marked as failed.
    let is_there = |i: &usize| series.iter().any(|bar| bar.values[*i].is_some());
    let kept: Vec<usize> = (0..figure.groups.len()).filter(is_there).collect();
    let series = series
        .into_iter()
        .map(|bar| Bar { values: kept.iter().map(|i| bar.values[*i]).collect(), ..bar });
    let series = series.filter(|bar| bar.values.iter().any(Option::is_some)).collect();
    let groups = kept.iter().map(|i| figure.groups[*i].clone()).collect();
    Ok(Drawing::Bars { y: y(figure), groups, series })
}

fn points(figure: &Figure, seeds: &[u64], results: &Arc<Results>) -> Result<Drawing, String> {
    let line = |series: &String| {
        let mut points = Vec::new();
        for group in &figure.groups {
            let at: f64 = group
                .parse()
                .map_err(|_| format!("\"{}\": the group {group} is no number", figure.title))?;
            if let Some(spot) = value(figure, series, group, seeds, results)? {
                points.push(Spot { x: at, ..spot });
            }
        }
        Ok(Line { label: series.clone(), points })
    };
    let lines = figure.series.iter().map(line).collect::<Result<Vec<_>, String>>()?;
    let lines = lines.into_iter().filter(|line| !line.points.is_empty()).collect();
    Ok(Drawing::Lines { x: x(figure), y: y(figure), lines })
}

/// `$` stands for the run, `$series` and `$group` for its halves.
fn value(
    figure: &Figure,
    series: &str,
    group: &str,
    seeds: &[u64],
    results: &Arc<Results>,
) -> Result<Option<Spot>, String> {
    let expression = figure
        .y
        .replace("$series", series)
        .replace("$group", group)
        .replace('$', &format!("{series}@{group}"));
    let values = seeds.iter().map(|seed| evaluate(&expression, *seed, results));
    let values: Vec<f64> = values.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    Ok((!values.is_empty()).then(|| spot(0.0, &values)))
}

fn spot(x: f64, values: &[f64]) -> Spot {
    let (low, high) = (values.iter().copied(), values.iter().copied());
    Spot {
        x,
        y: values.iter().sum::<f64>() / values.len() as f64,
        low: low.fold(f64::INFINITY, f64::min),
        high: high.fold(f64::NEG_INFINITY, f64::max),
    }
}

/// All runs in a table: means over the seeds.
pub fn rows(seeds: &[u64], results: &Results) -> Vec<Vec<String>> {
    let mut names: Vec<&str> = results.all().map(|result| result.run.as_str()).collect();
    names.dedup();
    let row = |name: &&str| {
        let runs: Vec<&RunResult> =
            seeds.iter().filter_map(|seed| results.get(name, *seed)).collect();
        let first = *runs.first()?;
        let mean = |metric: &str| {
            let values = runs.iter().filter_map(|run| run.metric(metric));
            values.sum::<f64>() / runs.len() as f64
        };
        let diverged = runs.iter().filter(|run| run.diverged.is_some()).count();
        let write = |x: f64, digits: usize| {
            if x.is_finite() { format!("{x:.digits$}") } else { "-".to_owned() }
        };
        Some(vec![
            (*name).to_owned(),
            runs.len().to_string(),
            format!("{}", first.rate),
            write(mean("seconds"), 2),
            write(mean("target_time"), 2),
            write(mean("loss"), 4),
            write(100.0 * mean("accuracy"), 2),
            write(mean("bytes") / 1e6, 1),
            write(mean("period"), 2),
            write(100.0 * mean("busy"), 1),
            if diverged > 0 { format!("{diverged} diverged") } else { String::new() },
        ])
    };
    names.iter().filter_map(row).collect()
}

pub const ROW_HEADER: [&str; 11] = [
    "run",
    "seeds",
    "rate",
    "seconds",
    "to target",
    "loss",
    "accuracy, %",
    "MB sent",
    "period",
    "busy, %",
    "",
];
