use super::*;
use crate::testing::is_well_formed;

fn scale(logarithmic: bool) -> Scale {
    Scale { label: "a < b".to_owned(), logarithmic }
}

fn point(x: f64, y: f64) -> RangePoint {
    RangePoint { x, y, low: 0.9 * y, high: 1.1 * y }
}

fn line(label: &str, values: &[f64]) -> Line {
    let points = values.iter().enumerate().map(|(i, y)| point(i as f64, *y)).collect();
    Line { label: label.to_owned(), points }
}

fn lines(logarithmic: bool, lines: Vec<Line>) -> Figure {
    let (x, y) = (scale(logarithmic), scale(logarithmic));
    figure(Drawing::Lines { x, y, lines })
}

/// Bars whose values are taken from `values` in turn, group by group.
fn bars(logarithmic: bool, groups: &[&str], labels: &[&str], values: &[f64]) -> Figure {
    let mut values = values.iter().cycle().map(|y| Some(point(0.0, *y)));
    let mut values = || values.by_ref().take(groups.len()).collect();
    let bar = |label: &&str| BarSeries { label: (*label).to_owned(), values: values() };
    let series = labels.iter().map(bar).collect();
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    figure(Drawing::Bars { y: scale(logarithmic), groups, series })
}

fn figure(drawing: Drawing) -> Figure {
    Figure { title: "A <title>".to_owned(), caption: "words & words".to_owned(), drawing }
}

/// The figure as SVG; panics if that is not well-formed.
fn valid_svg(figure: &Figure) -> String {
    let svg = figure.svg();
    assert!(is_well_formed(&svg), "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    svg
}

/// The height of a whole file.
fn height_of(svg: &str) -> f64 {
    let (_, rest) = svg.split_once(" height=\"").expect("a file has a height");
    rest.split('"').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// All texts of the drawing with their positions.
fn texts(svg: &str) -> Vec<(f64, f64, &str)> {
    let number = |text: &str, name: &str| -> f64 {
        let (_, rest) = text.split_once(name).expect("a text has a position");
        rest.split('"').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let texts = svg.split("<text").skip(1);
    let texts = texts.map(|text| {
        let content = text.split(['>', '<']).nth(1).expect("a text has content");
        (number(text, " x=\""), number(text, " y=\""), content)
    });
    texts.collect()
}

#[test]
fn names_are_escaped_and_the_caption_is_a_description() {
    let figures = [
        lines(false, vec![line("<&>", &[1.0, 2.0])]),
        bars(false, &["<&>"], &["a", "<b>"], &[1.0]),
        bars(false, &["<&>", "x"], &["a", "<a label longer than its bar>"], &[1.0]),
    ];

    for figure in figures {
        let svg = valid_svg(&figure);

        for text in
            ["A &lt;title&gt;", "a &lt; b", "&lt;&amp;&gt;", "<desc>words &amp; words</desc>"]
        {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
        for outside in ["href", "<script", "url(", "src="] {
            assert!(!svg.contains(outside), "the figure is not self-contained: {outside}");
        }
    }
}

#[test]
fn a_figure_without_data_says_so() {
    let none = BarSeries { label: "none".to_owned(), values: vec![None] };
    let groups = || vec!["group".to_owned()];
    let figures = [
        lines(false, vec![]),
        lines(true, vec![line("nothing", &[])]),
        lines(false, vec![line("diverged", &[f64::NAN, f64::INFINITY])]),
        lines(true, vec![line("no logarithms", &[0.0, -1.0])]),
        bars(false, &[], &[], &[1.0]),
        bars(false, &["group"], &[], &[1.0]),
        bars(true, &[], &["series"], &[1.0]),
        bars(false, &["group"], &["diverged"], &[f64::NAN]),
        figure(Drawing::Bars { y: scale(false), groups: groups(), series: vec![none] }),
    ];

    for figure in figures {
        let svg = valid_svg(&figure);

        assert!(svg.contains(">no data<") && svg.contains("A &lt;title&gt;"), "{svg}");
    }
}

#[test]
fn extreme_numbers_give_a_well_formed_figure() {
    let kinds = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-320,
        1e-9,
        1e99,
        1e300,
        -1e300,
        f64::MAX,
        f64::MIN,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];

    for a in kinds {
        for b in kinds {
            for logarithmic in [false, true] {
                let mut points = line("line", &[1.0, a, b, 2.0]);
                points.points.push(RangePoint { x: a, y: 1.0, low: b, high: a });
                points.points.push(RangePoint { x: 7.0, y: 1.0, low: b, high: a });
                valid_svg(&lines(logarithmic, vec![points]));
                valid_svg(&lines(logarithmic, vec![line("line", &[a, b])]));
                valid_svg(&bars(logarithmic, &["g", "h"], &["a", "b"], &[a, b, 2.0]));
                valid_svg(&bars(logarithmic, &["g"], &["a"], &[a]));
            }
        }
    }
}

#[test]
fn a_line_whose_last_point_is_not_finite_is_labeled_as_diverged() {
    let diverged = line("bad", &[1.0, 2.0, f64::NAN]);
    let never = line("worse", &[f64::INFINITY]);

    let svg = valid_svg(&lines(false, vec![line("good", &[1.0, 2.0, 3.0]), diverged, never]));

    for text in [">good<", ">bad (diverged)<", ">no data for worse<"] {
        assert!(svg.contains(text), "no {text} in {svg}");
    }
}

#[test]
fn ranges_are_drawn_only_where_seeds_differ() {
    let same = |y| RangePoint { x: y, y, low: y, high: y };
    let one_seed = Line { label: "one".to_owned(), points: vec![same(1.0), same(2.0)] };
    let bar = |point| BarSeries { label: "one".to_owned(), values: vec![Some(point)] };
    let one_bar = |point| {
        let (groups, series) = (vec!["group".to_owned()], vec![bar(point)]);
        figure(Drawing::Bars { y: scale(false), groups, series })
    };
    let cases = [
        (lines(false, vec![one_seed]), false),
        (lines(false, vec![line("three", &[1.0, 2.0])]), true),
        (one_bar(same(1.0)), false),
        (one_bar(point(0.0, 1.0)), true),
    ];

    for (figure, has_range) in cases {
        let svg = valid_svg(&figure);

        assert_eq!(svg.contains("over seeds"), has_range, "{svg}");
    }
}

#[test]
fn a_dozen_lines_and_more_have_separate_labels_and_distinct_looks() {
    for many in [12, 40] {
        let names: Vec<String> = (0..many).map(|i| format!("line {i}.")).collect();
        let same = names.iter().map(|name| line(name, &[3.0, 2.0, 1.0])).collect();

        let svg = valid_svg(&lines(true, same));

        let mut heights: Vec<f64> = texts(&svg)
            .into_iter()
            .filter(|(_, _, text)| text.starts_with("line "))
            .map(|(_, y, _)| y)
            .collect();
        heights.sort_by(f64::total_cmp);
        assert_eq!(heights.len(), many);
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > 14.0), "{heights:?}");
        assert!(heights[0] > 20.0 && heights[many - 1] < height_of(&svg), "{heights:?}");
    }
    let mut looks: Vec<String> = (0..12).map(|look| marker::marker(look, 0.0, 0.0)).collect();
    looks.sort();
    looks.dedup();
    assert_eq!(looks.len(), 12);
}

#[test]
fn a_long_line_is_thinned_to_the_resolution_of_the_plot() {
    let values: Vec<f64> = (0..100_000).map(|i| 1.0 + f64::from(i)).collect();

    let svg = valid_svg(&lines(false, vec![line("long", &values)]));

    assert!(svg.len() < 100_000, "{} bytes", svg.len());
}

#[test]
fn missing_bars_are_marked_and_explained() {
    let complete = valid_svg(&bars(false, &["g", "h"], &["a", "b"], &[1.0]));
    let with_gap = valid_svg(&bars(false, &["g", "h"], &["a", "b"], &[1.0, f64::NAN, 2.0]));

    assert!(!complete.contains("x: run missing"), "{complete}");
    assert!(with_gap.contains("x: run missing or diverged"), "{with_gap}");
}

#[test]
fn a_series_may_be_shorter_or_longer_than_the_groups() {
    let bar = |n| BarSeries { label: format!("{n}"), values: vec![Some(point(0.0, 1.0)); n] };
    let series = vec![bar(0), bar(1), bar(9)];
    let groups = vec!["g".to_owned(), "h".to_owned()];

    let svg = valid_svg(&figure(Drawing::Bars { y: scale(false), groups, series }));

    assert!(svg.contains("x: run missing"), "{svg}");
}

#[test]
fn series_are_named_under_their_bars_or_in_a_legend() {
    let short = valid_svg(&bars(false, &["g", "h"], &["ssgd", "local"], &[1.0]));
    let long = valid_svg(&bars(false, &["g", "h"], &["ssgd", &"long ".repeat(20)], &[1.0]));

    let count = |svg: &str, text: &str| texts(svg).iter().filter(|(_, _, t)| *t == text).count();
    assert_eq!((count(&short, "ssgd"), count(&short, "a")), (2, 0));
    // Once in the legend and once under each bar.
    assert_eq!((count(&long, "ssgd"), count(&long, "a")), (1, 3));
}

#[test]
fn many_bars_make_a_wider_drawing_whose_legend_stays_inside() {
    let groups: Vec<String> = (0..30).map(|i| format!("group number {i}")).collect();
    let labels: Vec<String> = (0..20).map(|i| format!("a series named {i}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();

    for (columns, series) in [(9, 8), (30, 20)] {
        let figure = bars(true, &groups[..columns], &labels[..series], &[3.0, 700.0, 20.0]);
        let svg = valid_svg(&figure);

        let width = figure.sketch().width;
        assert_eq!(width > WIDTH, columns > 9, "{width}");
        let inside = |(x, y, _): &(f64, f64, &str)| {
            (0.0..width).contains(x) && (0.0..height_of(&svg)).contains(y)
        };
        assert!(texts(&svg).iter().all(inside), "{svg}");
    }
}

#[test]
fn group_names_are_tilted_only_if_they_cannot_be_wrapped() {
    let wide = ["one slow worker", "two_slow_workers"].repeat(5);
    let wider = ["oneslowworkeramongmanyothers"].repeat(10);

    let wrapped = valid_svg(&bars(false, &wide, &["a", "b"], &[1.0]));
    let tilted = valid_svg(&bars(false, &wider, &["a", "b"], &[1.0]));

    assert!(wrapped.contains(">two_slow_<") && !wrapped.contains("rotate(-40"), "{wrapped}");
    assert_eq!(tilted.matches("rotate(-40").count(), 10);
}

#[test]
fn texts_are_wrapped_after_spaces_and_punctuation() {
    let table: [(&str, usize, Option<&[&str]>); 6] = [
        ("", 5, Some(&[])),
        ("one slow worker", 20, Some(&["one slow worker"])),
        ("one slow worker", 8, Some(&["one slow", "worker"])),
        ("two_slow-workers", 9, Some(&["two_slow-", "workers"])),
        ("one slow worker", 5, None),
        ("a b c d", 1, None),
    ];

    for (words, width, expected) in table {
        let lines = wrapped(words, width, 3);
        assert_eq!(
            lines.as_deref(),
            expected
                .map(|lines| lines.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>())
                .as_deref(),
            "{words}"
        );
    }
}
