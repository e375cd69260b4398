use paceline_runtime::{Line, Reader, Record, Spans, WorkerId};

use super::*;
use crate::curves::Curves;
use crate::panel::{COLORS, MUTED_COLOR};
use crate::testing::{assert_fits_a_phone, is_well_formed};

/// Two workers, 30 rounds of 10 ms and 20 samples, in epochs of 100.
fn read(loss: impl Fn(u64) -> f64, scored: bool) -> (Curves, Timeline) {
    let (mut curves, mut timeline) = (Curves::default(), Timeline::default());
    let mut read = |milliseconds: u64, record: Record| {
        let line = Line { at: Duration::from_millis(milliseconds), record };
        curves.read(&line);
        timeline.read(&line);
    };
    let began = Record::Began {
        version: 1,
        strategy: "any".to_owned(),
        seed: 1,
        samples_total: 600,
        samples_per_epoch: 100,
        model: String::new(),
        data: String::new(),
        params: 3,
        kernels: String::new(),
        together: true,
        central: false,
    };
    read(0, began);
    for round in 0..30 {
        let (start, end) = (10 * round, 10 * round + 10);
        for who in [WorkerId(0), WorkerId(1)] {
            let since = Duration::from_millis(start);
            read(start + 6, Record::Computed { who, since, samples: 10, round: None, spans: None });
            let (spans, loss_sum) = (Spans::one(20 * round, 20 * round + 20), 20.0 * loss(round));
            let (version, staleness, rate) = (round, 0, 0.1);
            read(
                end,
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
            );
            read(end, Record::Committed { who, round, fingerprint: None });
        }
        if scored {
            let accuracy = 0.5 + 0.01 * round as f64;
            read(end, Record::Scored { samples: 20 * (round + 1), loss: 1.0, accuracy });
        }
    }
    (curves, timeline)
}

fn draw(read: &[(&str, (Curves, Timeline))]) -> String {
    draw_with(read, Measured::Training, None)
}

fn draw_with(read: &[(&str, (Curves, Timeline))], on: Measured, goal: Option<Goal>) -> String {
    let runs: Vec<Run> = read
        .iter()
        .map(|(name, (curves, timeline))| Run {
            name,
            loss: curves.loss(),
            accuracy: curves.accuracy(),
            timeline,
        })
        .collect();
    comparison("a < b", &runs, on, goal)
}

#[test]
fn any_number_of_runs_gives_a_well_formed_drawing() {
    let nothing = || (Curves::default(), Timeline::default());
    let one = || read(|round| 2.0 / (1 + round) as f64, true);
    let many: Vec<_> = (0..16).map(|_| ("same name", one())).collect();
    let cases =
        [vec![], vec![("nothing", nothing())], vec![("one", one()), ("no", nothing())], many];

    for case in &cases {
        let svg = draw(case);

        assert!(is_well_formed(&svg), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn names_are_escaped_and_lines_are_labeled_with_their_ends() {
    let svg = draw(&[("<&>", read(|_| 0.25, true))]);

    for text in
        ["a &lt; b", "&lt;&amp;&gt; 0.2500", "&lt;&amp;&gt; 79.0 %", "Test accuracy over time"]
    {
        assert!(svg.contains(text), "no {text} in {svg}");
    }
}

/// 16 runs, of which the last two are equal.
#[test]
fn of_many_runs_the_best_have_colors_and_equal_ones_are_one_line() {
    let names: Vec<String> = (0..16).map(|i| format!("run{i}")).collect();
    let loss = |i: usize| move |round| 2.0 / (1 + round) as f64 + i.min(14) as f64;
    let read: Vec<(&str, (Curves, Timeline))> =
        names.iter().enumerate().map(|(i, name)| (name.as_str(), read(loss(i), true))).collect();

    let svg = draw(&read);

    assert!(svg.contains(">run14 = run15 "), "{svg}");
    // In two panels, six lines each have a color, and nine are grey; so are the pieces before their labels.
    let lines = |color: &str| svg.matches(&format!(r#"stroke="{color}" stroke-width="1"#)).count();
    assert_eq!(lines(MUTED_COLOR), 2 * 2 * 9);
    assert_eq!(COLORS[..6].iter().map(|color| lines(color)).sum::<usize>(), 2 * 2 * 6);
    assert_eq!(lines(COLORS[6]) + lines(COLORS[7]), 0);
}

#[test]
fn the_target_is_a_line_and_time_is_virtual() {
    let read = || [("run", read(|round| 2.0 / (1 + round) as f64, true))];

    let loss = draw_with(&read(), Measured::Validation, Some(Goal::Loss(0.3)));
    let accuracy = draw_with(&read(), Measured::Training, Some(Goal::Accuracy(0.9)));

    assert!(loss.contains(">target 0.3<") && loss.contains(">virtual time, ms<"), "{loss}");
    assert!(accuracy.contains(">target 90.0 %<"), "{accuracy}");
    assert!(loss.contains(">Validation loss over time<"), "{loss}");
    assert!(accuracy.contains(">Training loss over time<"), "{accuracy}");
}

/// Nothing is wider than a phone, except in a box of its own that scrolls.
#[test]
fn a_page_has_the_table_and_all_drawings_and_fits_a_phone() {
    let owned = |text: &str| text.to_owned();
    let (curves, timeline) = read(|round| 2.0 / (1 + round) as f64, true);
    let (loss, accuracy) = (curves.loss(), curves.accuracy());
    let run = Run { name: "a <run>", loss, accuracy, timeline: &timeline };
    let header = [owned("strategy"), owned("to target")];
    let rows = [vec![owned("a <run>"), owned("1.0 s")]];
    let judged = (Measured::Validation, Some(Goal::Loss(0.3)));

    let html = comparison_page("a <title>", &[run], judged, (&header, &rows));

    for part in [
        "<h1>a &lt;title&gt;</h1>",
        "<td>a &lt;run&gt;</td><td class=\"number\">1.0 s</td>",
        ">Validation loss over time<",
        ">target 0.3<",
        "Worker timelines: the first 120 ms",
    ] {
        assert!(html.contains(part), "no {part} in {html}");
    }
    let (_, body) = html.split_once("<body>").expect("a body");
    assert!(is_well_formed(body.split_once("</body>").expect("it is closed").0), "{html}");
    assert_fits_a_phone(&html);
}

#[test]
fn without_scores_the_loss_is_drawn_over_epochs() {
    let svg = draw(&[("run", read(|_| 0.25, false))]);

    assert!(svg.contains("Training loss over epochs") && svg.contains(">epochs<"), "{svg}");
}

#[test]
fn a_diverging_run_is_labeled_and_does_not_compress_the_others() {
    let cases = [
        read(|round| 2.0 * 10f64.powi(round as i32), false),
        read(|round| if round < 9 { 2.0 } else { f64::NAN }, false),
    ];

    for bad in cases {
        let svg = draw(&[("bad", bad), ("good", read(|_| 0.25, false))]);

        assert!(svg.contains("bad diverged") && svg.contains("good 0.2500"), "{svg}");
        assert!(is_well_formed(&svg) && !svg.contains("1e9") && !svg.contains("NaN"), "{svg}");
    }
}

#[test]
fn bars_show_the_first_dozen_rounds() {
    let svg = draw(&[("run", read(|_| 0.25, false))]);

    assert!(svg.contains("Worker timelines: the first 120 ms"), "{svg}");
}
