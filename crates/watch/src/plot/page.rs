//! A comparison as a self-contained HTML page, which can also be read on a phone.

use super::{Goal, Judged, Measured, PITCH, Run, WORKERS_MAX, groups, timeline, window};
use crate::bars::{IDS, legend, scale};
use crate::page::{drawing, page, table};
use crate::panel::Place;
use crate::svg::xml;
use crate::table::duration;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 20.0;

/// The page: the rows of a table below its header, the curves of all runs, and their timelines.
pub fn comparison_page(
    title: &str,
    runs: &[Run],
    (on, goal): (Measured, Option<Goal>),
    (header, rows): (&[String], &[Vec<String>]),
) -> String {
    let groups = groups(runs);
    let escaped = |cells: &[String]| cells.iter().map(|cell| xml(cell)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = rows.iter().map(|cells| escaped(cells)).collect();
    let numbers: Vec<bool> = (0..header.len()).map(|column| column > 0).collect();
    let mut body = table(&escaped(header), &rows, &numbers);

    body += "<h2>Curves</h2>\n<div class=\"panels\">\n";
    let judged = Judged { on, goal };
    for panel in [judged.loss_over_time(&groups), judged.second(&groups)].into_iter().flatten() {
        let place = Place { x: 0.0, y: 4.0, width: WIDTH, height: HEIGHT - 8.0 };
        body += &drawing(&panel.title, WIDTH, HEIGHT, &panel.svg(place));
    }
    body += "</div>\n";

    if let Some(until) = window(&groups) {
        let length = duration(until.as_secs_f64());
        body += &format!("<h2>Worker timelines: the first {length} of virtual time</h2>\n");
        let legend = drawing("Legend", WIDTH, MARGIN, &legend(0.0, 14.0));
        body += &format!("<div class=\"legend\">\n{legend}</div>\n<div class=\"panels\">\n");
        for group in &groups {
            let workers = group.run.timeline.workers().min(WORKERS_MAX);
            let place = Place { x: 0.0, y: MARGIN, width: WIDTH, height: 0.0 };
            let bottom = MARGIN + workers as f64 * PITCH;
            let axis = scale(IDS, bottom + 4.0, WIDTH - IDS, until.as_secs_f64());
            let svg = timeline(group, place, until) + &axis;
            body += &drawing(&group.name, WIDTH, bottom + 2.0 * MARGIN, &svg);
        }
        body += "</div>\n";
    }
    page("report", title, &body)
}
