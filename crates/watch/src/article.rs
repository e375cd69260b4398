//! An article: a self-contained HTML page with the tables, figures and notes of many runs.

use crate::figure::Figure;
use crate::page::{page, remarks, table};
use crate::svg::xml;

/// The parts of an article, from top to bottom.
#[derive(Clone, Debug)]
pub struct Article {
    pub title: String,
    /// Warnings, shown highlighted below the title.
    pub remarks: Vec<String>,
    pub tables: Vec<CaptionedTable>,
    pub figures: Vec<Figure>,
    /// Further notes, listed at the end.
    pub notes: Vec<String>,
}

/// A table with a caption above it.
#[derive(Clone, Debug)]
pub struct CaptionedTable {
    pub caption: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Which columns are right-aligned; missing entries mean left-aligned.
    pub numbers: Vec<bool>,
}

impl Article {
    /// The whole page.
    pub fn html(&self) -> String {
        let mut body = remarks(&self.remarks);
        body.extend(self.tables.iter().map(captioned_table));
        body.extend(self.figures.iter().map(figure));
        if !self.notes.is_empty() {
            let note = |note: &String| format!("<li>{}</li>\n", xml(note));
            let notes: String = self.notes.iter().map(note).collect();
            body += &format!("<h2>Notes</h2>\n<ul>\n{notes}</ul>\n");
        }
        page("article", &self.title, &body)
    }
}

fn captioned_table(captioned: &CaptionedTable) -> String {
    let escaped = |cells: &Vec<String>| cells.iter().map(|cell| xml(cell)).collect();
    let rows: Vec<Vec<String>> = captioned.rows.iter().map(escaped).collect();
    let table = table(&escaped(&captioned.header), &rows, &captioned.numbers);
    format!("<figure class=\"sheet\">\n{}{table}</figure>\n", caption(&captioned.caption))
}

fn figure(figure: &Figure) -> String {
    format!("<figure>\n{}{}</figure>\n", figure.html(), caption(&figure.caption))
}

fn caption(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("<figcaption>{}</figcaption>\n", xml(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{BarSeries, Drawing, Line, RangePoint, Scale};
    use crate::testing::is_well_formed;

    fn scale() -> Scale {
        Scale { label: "y".to_owned(), logarithmic: false }
    }

    fn article() -> Article {
        let owned = |text: &str| text.to_owned();
        let point = |x: f64| RangePoint { x, y: x, low: x - 1.0, high: x + 1.0 };
        let lines = vec![Line { label: owned("<line>"), points: vec![point(1.0), point(2.0)] }];
        let values = vec![Some(point(1.0)), None];
        let series = vec![BarSeries { label: owned("<bar>"), values }];
        let groups = vec![owned("one"), owned("two")];
        let drawings = [
            Drawing::Lines { x: scale(), y: scale(), lines },
            Drawing::Bars { y: scale(), groups, series },
        ];
        let figure = |drawing| Figure { title: owned("t"), caption: owned("<seen>"), drawing };
        Article {
            title: owned("a <title>"),
            remarks: vec![owned("a <remark>")],
            tables: vec![CaptionedTable {
                caption: owned("a <table>"),
                header: vec![owned("name"), owned("<value>")],
                rows: vec![vec![owned("x & y"), owned("1.0")], vec![owned("short")], vec![]],
                numbers: vec![false, true],
            }],
            figures: drawings.into_iter().map(figure).collect(),
            notes: vec![owned("a <note>")],
        }
    }

    fn assert_valid(html: &str) {
        let (_, body) = html.split_once("<body>").expect("the page has a body");
        let (body, _) = body.split_once("</body>").expect("the body is closed");
        assert!(is_well_formed(body), "{html}");
        assert!(!html.contains("NaN") && !html.contains("inf "), "{html}");
        for outside in ["http:", "https:", "<script", "<link", "url(", "src=", " id="] {
            assert!(!html.contains(outside), "the page is not self-contained: {outside}");
        }
    }

    #[test]
    fn an_article_has_all_its_parts_in_order_and_escapes_them() {
        let html = article().html();

        assert_valid(&html);
        let mut rest = html.as_str();
        for part in [
            "<title>a &lt;title&gt;</title>",
            "<h1>a &lt;title&gt;</h1>",
            "<p class=\"remark\">a &lt;remark&gt;</p>",
            "<figcaption>a &lt;table&gt;</figcaption>",
            "<tr><th>name</th><th class=\"number\">&lt;value&gt;</th></tr>",
            "<tr><td>x &amp; y</td><td class=\"number\">1.0</td></tr>",
            "&lt;line&gt;",
            "<figcaption>&lt;seen&gt;</figcaption>",
            "&lt;bar&gt;",
            "<li>a &lt;note&gt;</li>",
        ] {
            let found = rest.split_once(part);
            rest = found.unwrap_or_else(|| panic!("{part} is missing or out of order: {html}")).1;
        }
    }

    #[test]
    fn an_empty_article_is_a_page_with_a_title() {
        let (tables, figures) = (vec![], vec![]);
        let title = "nothing".to_owned();
        let html = Article { title, remarks: vec![], tables, figures, notes: vec![] }.html();

        assert_valid(&html);
        assert!(html.contains("<h1>nothing</h1>") && !html.contains("<h2>"), "{html}");
    }
}
