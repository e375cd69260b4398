//! The workers section of a run's page: utilization, waiting times and timelines.

use std::fmt::Write;
use std::time::Duration;

use paceline_runtime::WorkerId;

use super::{Facts, Report};
use crate::bars::{Bars, IDS, SHADES, legend, scale};
use crate::page::{drawing, table};
use crate::svg::{fill, rectangle, stroke, text};
use crate::table::{count, duration};

/// Further workers are counted, not listed.
const WORKERS_MAX: usize = 32;

const WIDTH: f64 = 1200.0;
const PITCH: f64 = 13.0;

pub(super) fn section(report: &Report, facts: &Facts) -> String {
    let workers = report.timeline.workers();
    if workers == 0 {
        return String::new();
    }
    let mut html = String::from("<h2>Workers</h2>\n");
    let _ = writeln!(html, "<p>{}</p>", waited_for_most(report, facts));
    html += &workers_table(report, facts);
    if workers > WORKERS_MAX {
        let _ =
            writeln!(html, "<p>and {} more workers.</p>", count((workers - WORKERS_MAX) as u64));
    }
    html += "<h2>Worker timelines</h2>\n";
    let (opening, end) = (report.timeline.opening(), report.timeline.length());
    let since = if report.timeline.is_resumed() { " since the run was resumed" } else { "" };
    if Duration::ZERO < opening && opening < end {
        let title = format!("The first {}{since}", duration(opening.as_secs_f64()));
        html += &bars(report, &title, opening);
    }
    html += &bars(report, &format!("All {}{since}", duration(end.as_secs_f64())), end);
    html
}

fn waited_for_most(report: &Report, facts: &Facts) -> String {
    if report.keeping_one_in() > 1 {
        return "Waiting times are not available, because the journal was thinned.".to_owned();
    }
    let most = facts.waited_for.iter().max_by_key(|(_, time)| **time);
    let Some((who, time)) = most.filter(|(_, time)| **time > Duration::ZERO) else {
        return "No worker waited for another.".to_owned();
    };
    let workers = report.timeline.workers();
    let time = duration(time.as_secs_f64());
    format!(
        "Other workers waited longest for <b>worker {who}</b>: {time} in total, summed over {workers} workers."
    )
}

fn workers_table(report: &Report, facts: &Facts) -> String {
    let header = ["worker", "computing", "utilization", "samples", "others waited for it"];
    let row = |(who, part): (WorkerId, f64)| {
        let samples = report.computed.get(&who).copied().unwrap_or(0);
        let waited = match facts.waited_for.get(&who).copied().unwrap_or_default() {
            _ if report.keeping_one_in() > 1 => "-".to_owned(),
            time => duration(time.as_secs_f64()),
        };
        let part_text = format!("{:.1} %", 100.0 * part);
        vec![who.to_string(), bar(part), part_text, count(samples), waited]
    };
    let workers = report.timeline.utilization().into_iter().take(WORKERS_MAX);
    let rows: Vec<Vec<String>> = workers.map(row).collect();
    table(&header.map(str::to_owned), &rows, &[false, false, true, true, true])
}

fn bar(part: f64) -> String {
    let (width, height) = (240.0, 14.0);
    let waiting = fill(SHADES[0], &rectangle(0.0, 2.0, width, height - 4.0));
    let computing = fill(SHADES[4], &rectangle(0.0, 2.0, width * part, height - 4.0));
    // A rim shows the whole bar on any background.
    let rim = stroke(SHADES[2], "", &rectangle(0.5, 2.0, width - 1.0, height - 4.0));
    let svg = drawing("utilization", width, height, &(waiting + &computing + &rim));
    format!("<div class=\"bar\">{svg}</div>")
}

fn bars(report: &Report, title: &str, until: Duration) -> String {
    let rows = report.timeline.workers().min(WORKERS_MAX);
    let (top, width) = (26.0, WIDTH - IDS - 12.0);
    let drawn = Bars { width, pitch: PITCH, workers_max: WORKERS_MAX, until: Some(until) };
    let bottom = top + rows as f64 * PITCH + 6.0;
    let svg = [
        text(IDS, 14.0, crate::svg::BOLD, title),
        legend(WIDTH - 420.0, 14.0),
        format!(r#"<g transform="translate({IDS} {top})">{}</g>"#, report.timeline.svg(drawn)),
        scale(IDS, bottom, width, until.as_secs_f64()),
    ];
    drawing(title, WIDTH, bottom + 36.0, &svg.concat())
}
