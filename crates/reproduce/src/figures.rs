//! Draws what an experiment asks to be drawn: means over the seeds, and their range.

use std::sync::Arc;

use paceline_watch::figure::{Bar, Drawing, Figure as Drawn, Line, Scale, Spot};

use crate::claims::{Checker, evaluate};
use crate::experiment::{Experiment, Figure, Kind, belongs};
use crate::result::{Measurement, Results};
use crate::summary::Summary;

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

/// Whether a figure can be drawn at all.
pub(crate) fn check(figure: &Figure, checker: &Checker) -> Result<(), String> {
    let told = |sentence: String| format!("figure \"{}\": {sentence}", figure.title);
    match figure.kind {
        Kind::Curves => {
            column(figure).map_err(told)?;
            let missing = figure.runs.iter().find(|run| !checker.knows(run));
            missing.map_or(Ok(()), |run| Err(told(checker.no_run(run))))
        }
        Kind::Bars | Kind::Points => check_halves(figure, checker).map_err(told),
    }
}

/// Not every series need be run on every group; each on one of them must be.
fn check_halves(figure: &Figure, checker: &Checker) -> Result<(), String> {
    let Figure { series, groups, .. } = figure;
    let (mut series_seen, mut groups_seen) = (vec![false; series.len()], vec![false; groups.len()]);
    for (i, series) in series.iter().enumerate() {
        for (k, group) in groups.iter().enumerate() {
            let is_there = checker.value(&expression(figure, series, group))?;
            series_seen[i] |= is_there;
            groups_seen[k] |= is_there;
        }
    }
    let unseen = |names: &[String], seen: &[bool]| {
        names.iter().zip(seen).find(|(_, seen)| !**seen).map(|(name, _)| name.clone())
    };
    match (unseen(series, &series_seen), unseen(groups, &groups_seen)) {
        (Some(name), _) => Err(format!("no run is there of `{name}`, one of its series")),
        (None, Some(name)) => Err(format!("no run is there of `{name}`, one of its groups")),
        (None, None) => Ok(()),
    }
}

/// Which column of a curve is drawn over.
fn column(figure: &Figure) -> Result<usize, String> {
    match figure.x.as_str() {
        "seconds" => Ok(0),
        "epochs" => Ok(1),
        other => Err(format!("x = \"{other}\": give seconds or epochs")),
    }
}

fn curves(figure: &Figure, seeds: &[u64], results: &Results) -> Result<Drawing, String> {
    let column = column(figure)?;
    let line = |run: &String| {
        let of = |seed: &u64| results.get(run, *seed);
        let has = |run: &&Measurement| run.curves.contains_key(&figure.y);
        let runs: Vec<&Measurement> = seeds.iter().filter_map(of).filter(has).collect();
        // Seeds are joined where they have seen as much; as far as the shortest goes.
        let shortest = runs.iter().min_by(|a, b| last(a, &figure.y).total_cmp(&last(b, &figure.y)));
        let epochs = shortest.map_or(vec![], |run| run.curves[&figure.y].clone());
        let spot = |point: &[f64; 3]| {
            let there = runs.iter().filter_map(|run| run.at(&figure.y, 1, point[1]));
            let there: Vec<[f64; 3]> = there.collect();
            let x = there.iter().map(|point| point[column]).sum::<f64>() / there.len() as f64;
            spot(x, &there.iter().map(|point| point[2]).collect::<Vec<_>>())
        };
        Line { label: run.clone(), points: epochs.iter().map(spot).collect() }
    };
    let lines = figure.runs.iter().map(line).filter(|line| !line.points.is_empty()).collect();
    let mut x = x(figure);
    if column == 0 {
        x.label = "virtual seconds".into();
    }
    Ok(Drawing::Lines { x, y: y(figure), lines })
}

/// How many epochs a curve goes on for.
fn last(run: &Measurement, curve: &str) -> f64 {
    run.curves[curve].last().map_or(0.0, |point| point[1])
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
fn expression(figure: &Figure, series: &str, group: &str) -> String {
    let halves = figure.y.replace("$series", series).replace("$group", group);
    halves.replace('$', &format!("{series}@{group}"))
}

fn value(
    figure: &Figure,
    series: &str,
    group: &str,
    seeds: &[u64],
    results: &Arc<Results>,
) -> Result<Option<Spot>, String> {
    let expression = expression(figure, series, group);
    let values = seeds.iter().map(|seed| evaluate(&expression, *seed, results));
    let values: Vec<f64> = values.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    Ok((!values.is_empty()).then(|| spot(0.0, &values)))
}

fn spot(x: f64, values: &[f64]) -> Spot {
    let Summary { mean, low, high, .. } = Summary::of(values);
    Spot { x, y: mean, low, high }
}
