//! What rules make of results.

use super::*;
use crate::result::Measurement;

fn claim(ours: &str, holds: &str) -> Claim {
    let text = format!(
        "name = 'c'\npaper = 'p'\nours = '{ours}'\nholds = '{holds}'\nin_part = 'mean > 1.0'\nshow = 'times'"
    );
    toml::from_str(&text).expect("it is a claim")
}

fn results() -> Arc<Results> {
    let mut results = Results::default();
    for (run, seed, seconds) in [("a@x", 1, 4.0), ("a@x", 2, 6.0), ("b@x", 1, 2.0), ("b@x", 2, 4.0)]
    {
        let json = format!(
            r#"{{"run":"{run}","seed":{seed},"key":"","commit":"","command":"","retimed":false,"rate":0.1,
            "seconds":{seconds},"to_target":null,"loss":0.5,"accuracy":0.9,"bytes":1,"rounds":1,"epochs":1.0,
            "period":null,"busy":1.0,"busy_least":1.0,"staleness":0,"diverged":null,
            "curves":{{"loss":[[1.0,0.5,2.0],[3.0,1.0,1.0]],"accuracy":[[2.0,1.0,0.5],[3.5,2.0,0.6]]}}}}"#
        );
        results.add(serde_json::from_str(&json).expect("it is a result"));
    }
    // One that came apart early, and looks cheap.
    let mut gone = results.get("a@x", 1).expect("it is there").clone();
    (gone.run, gone.seconds, gone.diverged) = ("gone@x".into(), 0.1, Some("apart".into()));
    (1..=2).for_each(|seed| results.add(Measurement { seed, ..gone.clone() }));
    Arc::new(results)
}

#[test]
fn what_came_apart_is_neither_fast_nor_cheap_and_no_rule_holds_of_what_is_unknown() {
    for (ours, holds) in [
        ("seconds(\"b@x\") / seconds(\"gone@x\")", "mean > 0.0"),
        ("bytes(\"gone@x\") / bytes(\"b@x\")", "mean <= 1.0"),
        ("loss(\"gone@x\") - loss(\"gone@x\")", "high < 1.0"),
        ("loss(\"gone@x\") / loss(\"gone@x\")", "low > 0.0"),
        ("target_epochs(\"a@x\") / target_epochs(\"b@x\")", "mean <= 1.1"),
    ] {
        let finding = find(&claim(ours, holds), &[1, 2], &results()).expect("it is decided");
        assert_eq!(finding.verdict, Verdict::DoesNotHold, "{ours}: {}", finding.ours);
    }
    let unknown = claim("loss(\"gone@x\") - loss(\"gone@x\")", "true");
    assert_eq!(find(&unknown, &[1, 2], &results()).expect("it is decided").ours, "unknown");
    // One seed tells nothing of the noise.
    let finding = find(&claim("0.5", "mean > 2.0 * error"), &[1], &results()).expect("decided");
    assert_eq!(finding.verdict, Verdict::DoesNotHold);
}

#[test]
fn rules_decide_over_the_seeds() {
    let cases = [
        ("mean >= 1.7 && low >= 1.4", Verdict::Holds),
        ("low > 1.6", Verdict::InPart),
        ("spread < 0.5 && mean > 1.5", Verdict::Holds),
    ];
    for (rule, verdict) in cases {
        let claim = claim("seconds(\"a@x\") / seconds(\"b@x\")", rule);

        let finding = find(&claim, &[1, 2], &results()).expect("it can be decided");

        assert_eq!(finding.verdict, verdict, "{rule}");
        assert_eq!(finding.ours, "1.75x (1.50x to 2.00x)");
    }
    let never = find(&claim("0.5", "mean > 2.0"), &[1], &results()).expect("it can be decided");
    assert_eq!(never.verdict, Verdict::DoesNotHold);
}

#[test]
fn expressions_know_runs_curves_and_lists() {
    for (expression, expected) in [
        ("least(all(\"seconds\", [\"a\", \"b\"], \"x\"))", 2.0),
        ("greatest([1, 2.5]) + average([1, 3])", 4.5),
        ("loss_at(\"a@x\", 2.0)", 1.5),
        ("loss_at_part(\"a@x\", 0.75)", 1.5),
        ("loss_at(\"a@x\", 0.5)", f64::INFINITY),
        ("loss_at(\"gone@x\", 2.0)", f64::INFINITY),
        ("loss_at_part(\"gone@x\", 0.75)", f64::INFINITY),
        ("accuracy_at(\"a@x\", 2.0)", 0.5),
        ("accuracy_at(\"a@x\", 0.5)", 0.0),
        ("accuracy_at(\"gone@x\", 2.0)", 0.0),
        ("epoch_seconds(\"a@x\", 2)", 1.5),
        ("target_time(\"a@x\")", f64::INFINITY),
        ("target_epochs(\"a@x\")", f64::INFINITY),
        ("noise(\"seconds\", \"b@x\")", 2f64.sqrt()),
        ("typical(\"seconds\", \"b@x\")", 3.0),
        ("if diverged(\"a@x\") == 0.0 { 7.0 } else { 8.0 }", 7.0),
    ] {
        let value = evaluate(expression, 1, &results()).expect("it is sound");
        assert_eq!(value, Some(expected), "{expression}");
    }
}

#[test]
fn each_counts_by_its_own_rule() {
    let mut claim = claim("seconds(\"$@x\")", "part >= 0.5");
    (claim.each, claim.item) = (vec!["a".into(), "b".into()], Some("x > 3.0".into()));

    let finding = find(&claim, &[1, 2], &results()).expect("it can be decided");

    assert_eq!(finding.ours, "4.00x (3.00x to 5.00x); in 3 of 4");
    assert_eq!(finding.verdict, Verdict::Holds);
}

#[test]
fn a_claim_about_runs_that_are_missing_is_not_decided() {
    let finding = find(&claim("seconds(\"c@x\")", "true"), &[1], &results()).expect("no error");

    let Verdict::NotRun(sentence) = finding.verdict else { panic!("{:?}", finding.verdict) };
    assert!(sentence.contains("no run `c@x`"), "{sentence}");
}

#[test]
fn a_rule_that_makes_no_sense_is_told_with_its_claim() {
    for (ours, holds) in
        [("secnds(\"a@x\")", "true"), ("1.0", "mean >"), ("1.0", "mean + 1"), ("1.0", "meen > 1.0")]
    {
        let error = find(&claim(ours, holds), &[1], &results()).expect_err("it is wrong");
        assert!(error.starts_with("claim \"c\":"), "{error}");
        let before = check(&claim(ours, holds), &checker());
        assert_eq!(before, Err(error), "before any run as after all");
    }
    let sound = claim("seconds(\"a@x\")", "mean > noise(\"loss\", \"a@x\")");
    assert_eq!(check(&sound, &checker()), Ok(()));
}

#[test]
fn a_run_that_no_size_has_is_told_before_any_run() {
    for (ours, holds, run) in [
        ("seconds(\"nope@x\")", "true", "nope@x"),
        ("seconds(\"a@x\") / seconds(\"nope@x\")", "true", "nope@x"),
        ("least(all(\"seconds\", [\"a\", \"nope\"], \"x\"))", "true", "nope@x"),
        ("seconds(\"a@x\")", "mean > noise(\"loss\", \"nope@x\")", "nope@x"),
    ] {
        let error = check(&claim(ours, holds), &checker()).expect_err("it is a slip");
        assert!(error.starts_with(&format!("claim \"c\": there is no run `{run}`; ")), "{error}");
    }
}

fn checker() -> Checker {
    Checker::new(["a@x", "b@x"].map(str::to_owned).into_iter())
}

#[test]
fn a_rule_about_a_run_that_is_missing_is_not_decided() {
    let mut claim = claim("seconds(\"a@x\")", "part > 0.0");
    claim.item = Some("x > seconds(\"c@x\")".into());

    let finding = find(&claim, &[1], &results()).expect("no error");

    assert!(matches!(finding.verdict, Verdict::NotRun(_)), "{:?}", finding.verdict);
}
