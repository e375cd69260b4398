//! The page itself: headings, tables, drawings and their style.

use std::fmt::Write;

use super::{Facts, Report, panels, workers};
use crate::bars::SHADES;
use crate::panel::{COLORS, FRAME, GRID, Place};
use crate::svg::{INK, xml};

pub(super) fn html(report: &Report, facts: &Facts) -> String {
    let title = xml(&facts.title);
    let mut body = format!("<h1>{title}</h1>\n");
    for remark in &facts.remarks {
        let _ = writeln!(body, r#"<p class="remark">{}</p>"#, xml(remark));
    }
    body += "<div class=\"facts\">\n";
    body += &table("What was asked for", &facts.about);
    body += &table("What came of it", &facts.figures);
    body += "</div>\n<h2>How it went</h2>\n<div class=\"panels\">\n";
    let panels = panels::all(report);
    if panels.is_empty() {
        body += "<p>The journal tells of no training.</p>\n";
    }
    for panel in panels {
        let place = Place { x: 0.0, y: 4.0, width: WIDTH, height: HEIGHT - 8.0 };
        body += &drawing(&panel.title, WIDTH, HEIGHT, &panel.svg(place));
    }
    body += "</div>\n";
    body += &workers::section(report, facts);
    let style = format!("{STYLE}@media (prefers-color-scheme: dark) {{\n{}}}\n", dark());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 300.0;

/// A drawing that fills the width it is given.
pub(super) fn drawing(title: &str, width: f64, height: f64, svg: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"{INK}\">{svg}</svg>\n",
        xml(title)
    )
}

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

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { margin: 1.5rem auto; max-width: 78rem; padding: 0 1rem; background: #ffffff; color: #222222;
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .8rem; }
h2 { font-size: 1.15rem; margin: 1.8rem 0 .6rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding-bottom: .3rem; }
th, td { text-align: left; vertical-align: top; padding: .12rem 1rem .12rem 0; font-weight: normal; }
th { opacity: .75; white-space: nowrap; }
td { overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem 2rem;
  align-items: start; justify-items: start; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
.remark { border-left: 4px solid #c00000; padding: .2rem .8rem; margin: 0 0 1rem; }
svg { width: 100%; height: auto; display: block; }
.bar { width: 16rem; max-width: 30vw; }
@media print { .panels svg { break-inside: avoid; } }
";

/// The same page on dark paper: every color of a drawing has a counterpart.
fn dark() -> String {
    let lines =
        ["#6db6ec", "#f59a4c", "#3fc79a", "#e783bb", "#b79aea", "#d0a94a", "#e8e8e8", "#2f86c4"];
    let shades = ["#3a3e45", "#54606f", "#7287a0", "#93aed0", "#b7d6ff"];
    let others = [(INK, "#dddddd"), (GRID, "#3a3a3a"), (FRAME, "#9a9a9a"), ("#c00000", "#ff7070")];
    let mut css = String::from("body { background: #16181c; color: #dddddd; }\n");
    let pairs = COLORS.into_iter().zip(lines).chain(SHADES.into_iter().zip(shades)).chain(others);
    for (light, dark) in pairs {
        let _ = writeln!(
            css,
            "svg [stroke=\"{light}\"] {{ stroke: {dark}; }} svg[fill=\"{light}\"], svg [fill=\"{light}\"] {{ fill: {dark}; }}"
        );
    }
    css
}
