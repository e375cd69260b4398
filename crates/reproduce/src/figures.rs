//! Draws the figures of an experiment: means over the seeds, and their range.

use std::sync::Arc;

use paceline_watch::figure::{BarSeries, Drawing, Figure as Drawn, Line, RangePoint, Scale};

use crate::claims::{Checker, evaluate};
use crate::error::{DefinitionError, FigureError};
use crate::experiment::{Experiment, Figure, Kind, is_in_size};
use crate::result::{Measurement, Results};
use crate::summary::Summary;

/// The figures of this size.
pub fn draw(
    experiment: &Experiment,
    size: &str,
    seeds: &[u64],
    results: &Arc<Results>,
) -> Result<Vec<Drawn>, DefinitionError> {
    let figures = experiment.figures.iter().filter(|figure| is_in_size(&figure.sizes, size));
    let draw = |figure: &Figure| {
        let drawing = match figure.kind {
            Kind::Curves => curves(figure, seeds, results),
            Kind::Bars => bars(figure, seeds, results),
            Kind::Points => points(figure, seeds, results),
        };
        let drawing = drawing.map_err(|source| in_figure(figure, source))?;
        Ok(Drawn { title: figure.title.clone(), caption: figure.caption.clone(), drawing })
    };
    figures.map(draw).collect()
}

fn in_figure(figure: &Figure, source: FigureError) -> DefinitionError {
    DefinitionError::Figure { figure: figure.title.clone(), source }
}

fn y(figure: &Figure) -> Scale {
    let label = if figure.y_label.is_empty() { &figure.y } else { &figure.y_label };
    Scale { label: label.clone(), logarithmic: figure.y_logarithmic }
}

fn x(figure: &Figure) -> Scale {
    Scale { label: figure.x.clone(), logarithmic: figure.x_logarithmic }
}

/// Checks a figure before any run.
pub(crate) fn check(figure: &Figure, checker: &Checker) -> Result<(), DefinitionError> {
    let checked = match figure.kind {
        Kind::Curves => check_curves(figure, checker),
        Kind::Bars | Kind::Points => check_series_and_groups(figure, checker),
    };
    checked.map_err(|source| in_figure(figure, source))
}

fn check_curves(figure: &Figure, checker: &Checker) -> Result<(), FigureError> {
    column(figure)?;
    match figure.runs.iter().find(|run| !checker.has_run(run)) {
        Some(run) => Err(checker.unknown_run(run).into()),
        None => Ok(()),
    }
}

/// A series may be missing on some groups, but every series and every group needs at least one run.
fn check_series_and_groups(figure: &Figure, checker: &Checker) -> Result<(), FigureError> {
    let Figure { series, groups, .. } = figure;
    let (mut series_used, mut groups_used) = (vec![false; series.len()], vec![false; groups.len()]);
    for (i, series) in series.iter().enumerate() {
        for (k, group) in groups.iter().enumerate() {
            let has_value = checker.has_value(&expression(figure, series, group))?;
            series_used[i] |= has_value;
            groups_used[k] |= has_value;
        }
    }
    let unused = |names: &[String], used: &[bool]| {
        names.iter().zip(used).find(|(_, used)| !**used).map(|(name, _)| name.clone())
    };
    match (unused(series, &series_used), unused(groups, &groups_used)) {
        (Some(name), _) => Err(FigureError::UnusedSeries(name)),
        (None, Some(name)) => Err(FigureError::UnusedGroup(name)),
        (None, None) => Ok(()),
    }
}

/// The column of a curve's points that is drawn on the x axis.
fn column(figure: &Figure) -> Result<usize, FigureError> {
    match figure.x.as_str() {
        "seconds" => Ok(0),
        "epochs" => Ok(1),
        other => Err(FigureError::UnknownColumn(other.to_owned())),
    }
}

fn curves(figure: &Figure, seeds: &[u64], results: &Results) -> Result<Drawing, FigureError> {
    let column = column(figure)?;
    let line = |run: &String| {
        let of = |seed: &u64| results.get(run, *seed);
        let has = |run: &&Measurement| run.curves.contains_key(&figure.y);
        let runs: Vec<&Measurement> = seeds.iter().filter_map(of).filter(has).collect();
        // Seeds are averaged at the same number of epochs, up to the end of the shortest curve.
        let end = |run: &Measurement| last_epoch(run, &figure.y);
        let shortest = runs.iter().min_by(|a, b| end(a).total_cmp(&end(b)));
        let epochs = shortest.map_or(vec![], |run| run.curves[&figure.y].clone());
        let average = |point: &[f64; 3]| {
            let seeds = runs.iter().filter_map(|run| run.at(&figure.y, 1, point[1]));
            let seeds: Vec<[f64; 3]> = seeds.collect();
            let x = seeds.iter().map(|point| point[column]).sum::<f64>() / seeds.len() as f64;
            range_point(x, &seeds.iter().map(|point| point[2]).collect::<Vec<_>>())
        };
        Line { label: run.clone(), points: epochs.iter().map(average).collect() }
    };
    let lines = figure.runs.iter().map(line).filter(|line| !line.points.is_empty()).collect();
    let mut x = x(figure);
    if column == 0 {
        x.label = "virtual seconds".into();
    }
    Ok(Drawing::Lines { x, y: y(figure), lines })
}

/// The epoch at which a curve ends.
fn last_epoch(run: &Measurement, curve: &str) -> f64 {
    run.curves[curve].last().map_or(0.0, |point| point[1])
}

fn bars(figure: &Figure, seeds: &[u64], results: &Arc<Results>) -> Result<Drawing, FigureError> {
    let bar = |series: &String| {
        let values = figure.groups.iter().map(|group| value(figure, series, group, seeds, results));
        let values = values.collect::<Result<_, FigureError>>()?;
        Ok(BarSeries { label: series.clone(), values })
    };
    let series = figure.series.iter().map(bar).collect::<Result<Vec<_>, FigureError>>()?;
    // Groups and series without runs in this size are omitted, not marked as missing.
    let has_runs = |i: &usize| series.iter().any(|bar| bar.values[*i].is_some());
    let kept: Vec<usize> = (0..figure.groups.len()).filter(has_runs).collect();
    let series = series
        .into_iter()
        .map(|bar| BarSeries { values: kept.iter().map(|i| bar.values[*i]).collect(), ..bar });
    let series = series.filter(|bar| bar.values.iter().any(Option::is_some)).collect();
    let groups = kept.iter().map(|i| figure.groups[*i].clone()).collect();
    Ok(Drawing::Bars { y: y(figure), groups, series })
}

fn points(figure: &Figure, seeds: &[u64], results: &Arc<Results>) -> Result<Drawing, FigureError> {
    let line = |series: &String| {
        let mut points = Vec::new();
        for group in &figure.groups {
            let x: f64 = group.parse().map_err(|_| FigureError::GroupNotANumber(group.clone()))?;
            if let Some(point) = value(figure, series, group, seeds, results)? {
                points.push(RangePoint { x, ..point });
            }
        }
        Ok(Line { label: series.clone(), points })
    };
    let lines = figure.series.iter().map(line).collect::<Result<Vec<_>, FigureError>>()?;
    let lines = lines.into_iter().filter(|line| !line.points.is_empty()).collect();
    Ok(Drawing::Lines { x: x(figure), y: y(figure), lines })
}

/// The figure's expression for one run: `$` is replaced by `series@group`, `$series` and `$group` by its parts.
fn expression(figure: &Figure, series: &str, group: &str) -> String {
    let parts = figure.y.replace("$series", series).replace("$group", group);
    parts.replace('$', &format!("{series}@{group}"))
}

fn value(
    figure: &Figure,
    series: &str,
    group: &str,
    seeds: &[u64],
    results: &Arc<Results>,
) -> Result<Option<RangePoint>, FigureError> {
    let expression = expression(figure, series, group);
    let values = seeds.iter().map(|seed| evaluate(&expression, *seed, results));
    let values: Vec<f64> = values.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    Ok((!values.is_empty()).then(|| range_point(0.0, &values)))
}

fn range_point(x: f64, values: &[f64]) -> RangePoint {
    let Summary { mean, low, high, .. } = Summary::of(values);
    RangePoint { x, y: mean, low, high }
}
