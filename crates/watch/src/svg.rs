//! The basic SVG elements of all drawings.

/// A text element; `style` holds additional attributes.
pub(crate) fn text(x: f64, y: f64, style: &str, content: &str) -> String {
    format!(r#"<text x="{x:.1}" y="{y:.1}" {style}>{}</text>"#, xml(content))
}

/// A complete SVG file with a white background.
pub(crate) fn file(width: f64, height: f64, body: &str) -> String {
    let paper = fill(PAPER, &rectangle(0.0, 0.0, width, height));
    let space = r#"xmlns="http://www.w3.org/2000/svg""#;
    let size = format!(r#"width="{width}" height="{height}" viewBox="0 0 {width} {height}""#);
    // Opened on a phone, the whole drawing is as wide as the screen, to be enlarged by hand.
    let fit = r#"style="max-width: 100%; height: auto""#;
    let style = format!(r#"{fit} font-family="sans-serif" font-size="11" fill="{INK}""#);
    format!("<svg {space} {size} {style}>{paper}{body}</svg>\n")
}

pub(crate) const PAPER: &str = "#ffffff";
pub(crate) const INK: &str = "#222222";
pub(crate) const BOLD: &str = r#"font-size="13" font-weight="bold""#;

/// An unfilled path; `style` holds additional attributes.
pub(crate) fn stroke(color: &str, style: &str, path: &str) -> String {
    format!(r#"<path fill="none" stroke="{color}" {style} d="{path}"/>"#)
}

pub(crate) fn fill(color: &str, path: &str) -> String {
    format!(r#"<path fill="{color}" d="{path}"/>"#)
}

/// The path of a rectangle.
pub(crate) fn rectangle(x: f64, y: f64, width: f64, height: f64) -> String {
    format!("M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z")
}

/// The path of a diagonal cross centered at a point.
pub(crate) fn cross(x: f64, y: f64, size: f64) -> String {
    let (left, top) = (x - size / 2.0, y - size / 2.0);
    format!("M{left:.1} {top:.1}l{size:.1} {size:.1}m0 -{size:.1}l-{size:.1} {size:.1}")
}

/// Escapes text for XML and HTML.
pub(crate) fn xml(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            // These cannot be represented in XML.
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            character if character.is_control() => escaped.push(' '),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(xml("a<b & \"c\"\u{1}'d'>"), "a&lt;b &amp; &quot;c&quot; &apos;d&apos;&gt;");
    }
}
