use paceline_runtime::Spans;

use super::*;
use crate::testing::{
    assert_fits_a_phone, began, is_well_formed, line, read_all, two_workers, view,
};

fn html(lines: &[Line]) -> String {
    let mut report = Report::default();
    read_all(&mut report, lines);
    report.html(&Facts { title: "a <run>".to_owned(), ..Facts::default() })
}

fn body(html: &str) -> &str {
    html.split_once("<body>").and_then(|(_, rest)| rest.split_once("</body>")).expect("a body").0
}

fn assert_valid(html: &str) {
    assert!(is_well_formed(body(html)), "{html}");
    assert!(!html.contains("NaN") && !html.contains("inf "), "{html}");
    for outside in ["http:", "https:", "<script", "<link", "url(", "src="] {
        assert!(!html.contains(outside), "the page is not self-contained: {outside}");
    }
}

#[test]
fn a_page_has_a_panel_for_everything_recorded() {
    let html = html(&two_workers(50));

    assert_valid(&html);
    for title in [
        "Loss over time",
        "Loss over epochs",
        "Test accuracy over time",
        "Test accuracy over epochs",
        "Learning rate",
        "Samples per second, all workers",
        "Each worker&apos;s share of the samples",
        "Bytes sent, all workers",
        "The first 120 ms",
        "All 500 ms",
        "a &lt;run&gt;",
        "prefers-color-scheme: dark",
        ">test 0.500<",
        ">75.0 %<",
        ">40.0 %<",
        ">90.0 %<",
        ">10.0 kB<",
    ] {
        assert!(html.contains(title), "no {title} in {html}");
    }
    for title in ["Members over time", "Staleness", "Period", "class=\"remark\""] {
        assert!(!html.contains(title), "unexpected {title} in {html}");
    }
}

#[test]
fn a_page_fits_a_phone() {
    let mut report = Report::default();
    read_all(&mut report, &two_workers(50));
    let long = "word ".repeat(60) + &"x".repeat(300);
    let about = vec![("command".to_owned(), long.clone())];
    let remarks = vec![long.clone()];
    let facts = Facts { title: long, about, remarks, ..Facts::default() };

    assert_fits_a_phone(&report.html(&facts));
}

#[test]
fn members_staleness_and_notes_get_panels_if_they_vary() {
    let mut lines = two_workers(50);
    lines.push(line(500, view(2, &[0])));
    for (at, staleness) in [(505, 1), (510, 7)] {
        let (who, version, loss_sum, rate) = (WorkerId(0), 60, 1.0, 0.1);
        let spans = Spans::one(10 * at, 10 * at + 10);
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
        lines.push(line(at, applied));
    }
    for (name, value) in [("period", 8.0), ("<own>", -1.0)] {
        let name = name.to_owned();
        lines.push(line(520, Record::Note { who: WorkerId(0), name, value, round: None }));
    }

    let html = html(&lines);

    assert_valid(&html);
    for title in ["Members over time", "Staleness", "max 7.0", "Period", "metric: &lt;own&gt;"] {
        assert!(html.contains(title), "no {title} in {html}");
    }
}

#[test]
fn every_prefix_of_a_journal_gives_a_page() {
    let lines = two_workers(8);

    for n in 0..lines.len() {
        assert_valid(&html(&lines[..n]));
    }
}

#[test]
fn a_diverged_run_is_drawn_up_to_its_last_finite_values() {
    let mut lines = two_workers(10);
    for (i, loss_sum) in [(0, 1e9), (1, f64::INFINITY), (2, f64::NAN)] {
        let (who, version, staleness, rate) = (WorkerId(0), 60, 0, 0.1);
        let spans = Spans::one(200 + 10 * i, 210 + 10 * i);
        lines.push(line(
            110,
            Record::Applied {
                who,
                version,
                spans,
                loss_sum,
                weight: None,
                staleness,
                rate,
                round: None,
                result: None,
            },
        ));
        lines.push(line(110, Record::Scored { samples: 210, loss: loss_sum, accuracy: f64::NAN }));
    }

    assert_valid(&html(&lines));
}

#[test]
fn the_page_of_a_long_run_of_many_workers_stays_small() {
    let mut lines = vec![line(0, began(false)), line(0, view(1, &(0..500).collect::<Vec<_>>()))];
    for i in 0..200_000u64 {
        let (who, since) = (WorkerId((i % 500) as u32), Duration::from_millis(i));
        lines.push(line(
            i + 1,
            Record::Computed { who, since, samples: 1, round: None, spans: None },
        ));
        lines.push(line(i + 1, Record::Sent { who, to: WorkerId(0), bytes: 10 }));
        lines.push(line(i + 1, Record::Committed { who, round: i / 500, fingerprint: None }));
    }

    let html = html(&lines);

    assert_valid(&html);
    assert!(html.contains("12 of 500 workers") && html.contains("and 468 more workers"));
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
}

#[test]
fn the_page_names_the_worker_that_others_waited_for() {
    let mut report = Report::default();
    read_all(&mut report, &two_workers(10));

    let waited_for = BTreeMap::from([(WorkerId(1), Duration::from_millis(50))]);
    let html = report.html(&Facts { waited_for, ..Facts::default() });

    assert!(html.contains("waited longest for <b>worker 1</b>: 50 ms in total"), "{html}");
}

#[test]
fn a_thinned_journal_gives_estimates_and_no_waits() {
    let mut lines = two_workers(50);
    let halved =
        lines.iter().position(|line| line.at.as_millis() > 250).expect("there is a middle");
    lines.insert(halved, line(250, Record::Thinned { keeping_one_in: 3 }));

    let mut report = Report::default();
    read_all(&mut report, &lines);

    // Two workers: 25 rounds count once, 25 count three times.
    assert_eq!(report.bytes_total(), 2 * 25 * 100 + 2 * 25 * 300);
    assert!(report.html(&Facts::default()).contains("Waiting times are not available"));
}
