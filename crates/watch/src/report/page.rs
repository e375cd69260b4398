//! The layout of a run's page.

use std::fmt::Write;

use super::{Facts, Report, panels, workers};
use crate::page::{drawing, page, remarks};
use crate::panel::Place;
use crate::svg::xml;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 300.0;

pub(super) fn html(report: &Report, facts: &Facts) -> String {
    let mut body = remarks(&facts.remarks);
    body += "<div class=\"facts\">\n";
    body += &table("Configuration", &facts.about);
    body += &table("Results", &facts.figures);
    body += "</div>\n<h2>Training</h2>\n<div class=\"panels\">\n";
    let panels = panels::all(report);
    if panels.is_empty() {
        body += "<p>The journal contains no training.</p>\n";
    }
    for panel in panels {
        let place = Place { x: 0.0, y: 4.0, width: WIDTH, height: HEIGHT - 8.0 };
        body += &drawing(&panel.title, WIDTH, HEIGHT, &panel.svg(place));
    }
    body += "</div>\n";
    body += &workers::section(report, facts);
    page("report", &facts.title, &body)
}

/// A table of names and values.
fn table(title: &str, rows: &[(String, String)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut html = format!("<table>\n<caption>{title}</caption>\n");
    for (name, value) in rows {
        let _ =
            writeln!(html, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", xml(name), xml(value));
    }
    html + "</table>\n"
}
