//! Test fixtures: a small journal, and a check that drawings are well-formed.

use std::time::Duration;

use paceline_runtime::{Line, Reader, Record, Spans, WorkerId};

/// A journal of two workers. A round takes 10 ms: workers 0 and 1 compute 10 samples each in 4 ms and 9 ms, and the exchange
/// ends 1 ms later. An epoch has 100 samples and ends with a score.
pub fn two_workers(rounds: u64) -> Vec<Line> {
    let mut lines = vec![
        line(0, began(true)),
        line(0, Record::Started { who: WorkerId(0) }),
        line(0, Record::Started { who: WorkerId(1) }),
        line(0, view(1, &[0, 1])),
    ];
    for round in 0..rounds {
        let start = 10 * round;
        for (who, busy) in [(WorkerId(0), 4), (WorkerId(1), 9)] {
            let (since, compute) = (milliseconds(start), milliseconds(busy));
            let (view, exchange, samples) = (1, round, 10);
            lines.push(line(
                start + busy,
                Record::Computed { who, since, samples, round: None, spans: None },
            ));
            let entered = Record::Entered { who, view, exchange, round, samples, compute };
            lines.push(line(start + busy, entered));
        }
        for (who, busy) in [(WorkerId(0), 4), (WorkerId(1), 9)] {
            let entered = milliseconds(start + busy);
            let (blocked, view, exchange, bytes) = (entered, 1, round, 100);
            let exchanged = Record::Exchanged { who, view, exchange, entered, blocked, bytes };
            lines.push(line(start + 10, exchanged));
            let (spans, loss_sum) =
                (Spans::one(20 * round, 20 * round + 20), 20.0 / (1 + round) as f64);
            let (version, staleness, rate) = (round, 0, 0.25);
            let applied = Record::Applied {
                who,
                version,
                spans,
                loss_sum,
                weight: None,
                staleness,
                rate,
                round: None,
                result: None,
            };
            lines.push(line(start + 10, applied));
            lines.push(line(start + 10, Record::Committed { who, round, fingerprint: None }));
        }
        let samples = 20 * (round + 1);
        if samples % 100 == 0 {
            lines.push(line(start + 10, Record::Scored { samples, loss: 0.5, accuracy: 0.75 }));
        }
    }
    lines
}

pub fn read_all(reader: &mut impl Reader, lines: &[Line]) {
    lines.iter().for_each(|line| reader.read(line));
}

pub fn began(together: bool) -> Record {
    Record::Began {
        version: 1,
        strategy: "any".to_owned(),
        seed: 1,
        samples_total: 1000,
        samples_per_epoch: 100,
        model: String::new(),
        data: String::new(),
        params: 3,
        kernels: String::new(),
        together,
        central: false,
    }
}

pub fn view(number: u64, members: &[u32]) -> Record {
    let members = members.iter().copied().map(WorkerId).collect();
    Record::View { number, members, reason: "a test".to_owned() }
}

pub fn line(at: u64, record: Record) -> Line {
    Line { at: milliseconds(at), record }
}

pub fn milliseconds(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A path for temporary files, unique to this process and `name`.
pub fn scratch(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("paceline-watch-{}-{name}", std::process::id()))
}

/// Whether all elements are closed and properly nested.
pub fn is_well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("every tag is closed");
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap_or("");
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    open.is_empty()
}

/// Asserts that a page says its width is the device's, and that at 400 px nothing but the content of boxes that scroll is wider.
pub fn assert_fits_a_phone(html: &str) {
    let viewport = r#"<meta name="viewport" content="width=device-width, initial-scale=1">"#;
    assert!(html.contains(viewport), "{html}");
    let (style, body) = html.split_once("</style>").expect("a page has a style");
    let (_, narrow) = style.split_once("@media (max-width: 40rem) {").expect("a narrow style");
    assert!(narrow.contains(".drawing, table { display: block; overflow-x: auto; }"), "{style}");
    // Widths in the style of all screens, or in that of narrow ones for what is in no box that scrolls.
    for rule in style.split('}').filter(|rule| !rule.contains(".drawing svg")) {
        for width in pixels_of(rule, "width:").chain(pixels_of(rule, "minmax(")) {
            let is_bounded = rule.contains("max-width") || rule.contains("min(100%");
            assert!(width <= 400.0 || is_bounded, "{width} px: {rule}");
        }
    }
    // Drawings have a size of their own only inside of other drawings, and no element sets a style.
    for (before, svg) in body.match_indices("<svg ").map(|(at, _)| body.split_at(at)) {
        let is_inner = before.matches("<svg ").count() > before.matches("</svg>").count();
        let head = svg.split_once('>').expect("it is closed").0;
        assert!(is_inner || !head.contains(" width="), "{head}");
        assert!(is_inner || before.ends_with("<div class=\"drawing\">"), "{head}");
    }
    assert!(!body.contains(" style="), "{body}");
}

/// The lengths that follow a property, in pixels of a usual font.
fn pixels_of<'a>(rule: &'a str, property: &'a str) -> impl Iterator<Item = f64> + 'a {
    rule.match_indices(property).filter_map(move |(at, _)| {
        let value = rule[at + property.len()..].trim_start();
        let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
        let (number, unit) = value.split_at(end);
        let scale = if unit.starts_with("rem") { 16.0 } else { 1.0 };
        let is_length = unit.starts_with("rem") || unit.starts_with("px");
        number.parse::<f64>().ok().filter(|_| is_length).map(|number| number * scale)
    })
}
