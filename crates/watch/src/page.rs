//! The common parts of self-contained HTML pages: frame, tables, drawings and style.

use std::fmt::Write;

use crate::bars::SHADES;
use crate::panel::{COLORS, FRAME, GRID, MUTED_COLOR};
use crate::svg::{INK, PAPER, xml};

/// A whole page; `kind` is the CSS class of its main element.
pub(crate) fn page(kind: &str, title: &str, body: &str) -> String {
    let title = xml(title);
    let style = format!("{STYLE}@media (prefers-color-scheme: dark) {{\n{}}}\n", dark());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n\
         <body>\n<main class=\"{kind}\">\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Warnings, one highlighted paragraph each.
pub(crate) fn remarks(remarks: &[String]) -> String {
    let remark = |remark: &String| format!("<p class=\"remark\">{}</p>\n", xml(remark));
    remarks.iter().map(remark).collect()
}

/// An inline SVG that fills the available width.
pub(crate) fn drawing(title: &str, width: f64, height: f64, svg: &str) -> String {
    format!(
        "<div class=\"drawing\"><svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"{INK}\">{svg}</svg></div>\n",
        xml(title)
    )
}

/// Rows below a header; cells are HTML. `numbers` says which columns are right-aligned.
pub(crate) fn table(header: &[String], rows: &[Vec<String>], numbers: &[bool]) -> String {
    let row = |tag: &str, cells: &[String]| {
        let mut html = String::from("<tr>");
        for (column, cell) in cells.iter().enumerate() {
            let is_number = numbers.get(column).copied().unwrap_or(false);
            let class = if is_number { " class=\"number\"" } else { "" };
            let _ = write!(html, "<{tag}{class}>{cell}</{tag}>");
        }
        html + "</tr>\n"
    };
    let body: String = rows.iter().map(|cells| row("td", cells)).collect();
    format!("<table>\n{}{body}</table>\n", row("th", header))
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
.drawing > svg { overflow: visible; }
.legend { max-width: 38rem; }
.report > table td { white-space: nowrap; }
.bar { width: 16rem; max-width: 30vw; }
.article { max-width: 60rem; margin: 0 auto; }
figure { margin: 1.8rem 0; }
figcaption { margin: .3rem 0; }
.sheet figcaption { font-weight: bold; }
figure table { display: block; overflow-x: auto; }
figure th { border-bottom: 1px solid; }
@media (max-width: 40rem) {
  .drawing, table { display: block; overflow-x: auto; }
  .drawing svg { min-width: 32rem; }
  .bar .drawing svg { min-width: 0; }
  .panels { grid-template-columns: minmax(0, 1fr); }
}
@media print { .panels svg, figure { break-inside: avoid; } }
";

/// The style for dark mode: every color of a drawing is mapped to a counterpart.
fn dark() -> String {
    let lines =
        ["#6db6ec", "#f59a4c", "#3fc79a", "#e783bb", "#b79aea", "#d0a94a", "#e8e8e8", "#2f86c4"];
    let shades = ["#3a3e45", "#54606f", "#7287a0", "#93aed0", "#b7d6ff"];
    let others = [
        (PAPER, "#16181c"),
        (INK, "#dddddd"),
        (GRID, "#3a3a3a"),
        (FRAME, "#9a9a9a"),
        (MUTED_COLOR, "#5c5c5c"),
        ("#c00000", "#ff7070"),
    ];
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
