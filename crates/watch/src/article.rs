//! An article (HTML, nothing else needed): tables and figures of many runs, with the words that belong to them.

use crate::figure::Figure;
use crate::page::{page, remarks, table};
use crate::svg::xml;

/// What an article says, from top to bottom.
#[derive(Clone, Debug)]
pub struct Article {
    pub title: String,
    /// What must not be overlooked.
    pub remarks: Vec<String>,
    pub sheets: Vec<Sheet>,
    pub figures: Vec<Figure>,
    /// What else there is to know, at the end.
    pub notes: Vec<String>,
}

/// A table with a caption above it.
#[derive(Clone, Debug)]
pub struct Sheet {
    pub caption: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Which columns are flush right; those it does not mention are not.
    pub numbers: Vec<bool>,
}

impl Article {
    /// The page.
    pub fn html(&self) -> String {
        let mut body = remarks(&self.remarks);
        body.extend(self.sheets.iter().map(sheet));
        body.extend(self.figures.iter().map(figure));
        if !self.notes.is_empty() {
            let note = |note: &String| format!("<li>{}</li>\n", xml(note));
            let notes: String = self.notes.iter().map(note).collect();
            body += &format!("<h2>Notes</h2>\n<ul>\n{notes}</ul>\n");
        }
        page("article", &self.title, &body)
    }
}

fn sheet(sheet: &Sheet) -> String {
    let escaped = |cells: &Vec<String>| cells.iter().map(|cell| xml(cell)).collect();
    let rows: Vec<Vec<String>> = sheet.rows.iter().map(escaped).collect();
    let table = table(&escaped(&sheet.header), &rows, &sheet.numbers);
    format!("<figure class=\"sheet\">\n{}{table}</figure>\n", caption(&sheet.caption))
}

fn figure(figure: &Figure) -> String {
    format!("<figure>\n{}{}</figure>\n", figure.html(), caption(&figure.caption))
}

fn caption(words: &str) -> String {
    if words.is_empty() {
        return String::new();
    }
    format!("<figcaption>{}</figcaption>\n", xml(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Bar, Drawing, Line, Scale, Spot};
    use crate::testing::is_well_formed;

    fn scale() -> Scale {
        Scale { label: "y".to_owned(), logarithmic: false }
    }

    fn article() -> Article {
        let words = |words: &str| words.to_owned();
        let spot = |x: f64| Spot { x, y: x, low: x - 1.0, high: x + 1.0 };
        let lines = vec![Line { label: words("<line>"), points: vec![spot(1.0), spot(2.0)] }];
        let series = vec![Bar { label: words("<bar>"), values: vec![Some(spot(1.0)), None] }];
        let groups = vec![words("one"), words("two")];
        let drawings = [
            Drawing::Lines { x: scale(), y: scale(), lines },
            Drawing::Bars { y: scale(), groups, series },
        ];
        let figure = |drawing| Figure { title: words("t"), caption: words("<seen>"), drawing };
        Article {
            title: words("a <title>"),
            remarks: vec![words("a <remark>")],
            sheets: vec![Sheet {
                caption: words("a <sheet>"),
                header: vec![words("name"), words("<value>")],
                rows: vec![vec![words("x & y"), words("1.0")], vec![words("short")], vec![]],
                numbers: vec![false, true],
            }],
            figures: drawings.into_iter().map(figure).collect(),
            notes: vec![words("a <note>")],
        }
    }

    fn assert_sound(html: &str) {
        let (_, body) = html.split_once("<body>").expect("a body");
        let (body, _) = body.split_once("</body>").expect("a body ends");
        assert!(is_well_formed(body), "{html}");
        assert!(!html.contains("NaN") && !html.contains("inf "), "{html}");
        for outside in ["http:", "https:", "<script", "<link", "url(", "src=", " id="] {
            assert!(!html.contains(outside), "the page needs {outside}");
        }
    }

    #[test]
    fn an_article_has_all_its_parts_in_order_and_escaped() {
        let html = article().html();

        assert_sound(&html);
        let mut rest = html.as_str();
        for part in [
            "<title>a &lt;title&gt;</title>",
            "<h1>a &lt;title&gt;</h1>",
            "<p class=\"remark\">a &lt;remark&gt;</p>",
            "<figcaption>a &lt;sheet&gt;</figcaption>",
            "<tr><th>name</th><th class=\"number\">&lt;value&gt;</th></tr>",
            "<tr><td>x &amp; y</td><td class=\"number\">1.0</td></tr>",
            "&lt;line&gt;",
            "<figcaption>&lt;seen&gt;</figcaption>",
            "&lt;bar&gt;",
            "<li>a &lt;note&gt;</li>",
        ] {
            let found = rest.split_once(part);
            rest = found.unwrap_or_else(|| panic!("no {part} at its place in {html}")).1;
        }
    }

    #[test]
    fn an_empty_article_is_a_page_with_a_title() {
        let (sheets, figures) = (vec![], vec![]);
        let title = "nothing".to_owned();
        let html = Article { title, remarks: vec![], sheets, figures, notes: vec![] }.html();

        assert_sound(&html);
        assert!(html.contains("<h1>nothing</h1>") && !html.contains("<h2>"), "{html}");
    }
}
