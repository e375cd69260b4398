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
        page(&self.title, &body)
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
