//! Tests of claims and rules on made-up results.

use super::*;
use crate::result::Measurement;

fn claim(ours: &str, holds: &str) -> Claim {
    let text = format!(
        "name = 'c'\npaper = 'p'\nours = '{ours}'\nholds = '{holds}'\nin_part = 'mean > 1.0'\nshow = 'times'"
    );
    toml::from_str(&text).expect("the claim is valid TOML")
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
        results.add(serde_json::from_str(&json).expect("the result is valid JSON"));
    }
    // A run that diverged early, so that its time and bytes are small.
    let mut diverged = results.get("a@x", 1).expect("the result was added").clone();
    (diverged.run, diverged.seconds) = ("diverged@x".into(), 0.1);
    diverged.diverged = Some("training diverged".into());
    (1..=2).for_each(|seed| results.add(Measurement { seed, ..diverged.clone() }));
    Arc::new(results)
}

#[test]
fn a_diverged_run_is_neither_fast_nor_cheap_and_no_rule_holds_for_an_unknown_value() {
    for (ours, holds) in [
        ("seconds(\"b@x\") / seconds(\"diverged@x\")", "mean > 0.0"),
        ("bytes(\"diverged@x\") / bytes(\"b@x\")", "mean <= 1.0"),
        ("loss(\"diverged@x\") - loss(\"diverged@x\")", "high < 1.0"),
        ("loss(\"diverged@x\") / loss(\"diverged@x\")", "low > 0.0"),
        ("target_epochs(\"a@x\") / target_epochs(\"b@x\")", "mean <= 1.1"),
    ] {
        let finding = find(&claim(ours, holds), &[1, 2], &results()).expect("the claim is valid");
        assert_eq!(finding.verdict, Verdict::DoesNotHold, "{ours}: {}", finding.ours);
    }
    let unknown = claim("loss(\"diverged@x\") - loss(\"diverged@x\")", "true");
    assert_eq!(find(&unknown, &[1, 2], &results()).expect("the claim is valid").ours, "unknown");
    // The noise cannot be estimated from a single seed.
    let noise = claim("0.5", "mean > 2.0 * error");
    let finding = find(&noise, &[1], &results()).expect("the claim is valid");
    assert_eq!(finding.verdict, Verdict::DoesNotHold);
}

#[test]
fn rules_are_evaluated_over_all_seeds() {
    let cases = [
        ("mean >= 1.7 && low >= 1.4", Verdict::Holds),
        ("low > 1.6", Verdict::InPart),
        ("spread < 0.5 && mean > 1.5", Verdict::Holds),
    ];
    for (rule, verdict) in cases {
        let claim = claim("seconds(\"a@x\") / seconds(\"b@x\")", rule);

        let finding = find(&claim, &[1, 2], &results()).expect("the claim is valid");

        assert_eq!(finding.verdict, verdict, "{rule}");
        assert_eq!(finding.ours, "1.75x (1.50x to 2.00x)");
    }
    let never = find(&claim("0.5", "mean > 2.0"), &[1], &results()).expect("the claim is valid");
    assert_eq!(never.verdict, Verdict::DoesNotHold);
}

#[test]
fn expressions_read_runs_curves_and_lists() {
    for (expression, expected) in [
        ("least(all(\"seconds\", [\"a\", \"b\"], \"x\"))", 2.0),
        ("greatest([1, 2.5]) + average([1, 3])", 4.5),
        ("loss_at(\"a@x\", 2.0)", 1.5),
        ("loss_at_part(\"a@x\", 0.75)", 1.5),
        ("loss_at(\"a@x\", 0.5)", f64::INFINITY),
        ("loss_at(\"diverged@x\", 2.0)", f64::INFINITY),
        ("loss_at_part(\"diverged@x\", 0.75)", f64::INFINITY),
        ("accuracy_at(\"a@x\", 2.0)", 0.5),
        ("accuracy_at(\"a@x\", 0.5)", 0.0),
        ("accuracy_at(\"diverged@x\", 2.0)", 0.0),
        ("epoch_seconds(\"a@x\", 2)", 1.5),
        ("target_time(\"a@x\")", f64::INFINITY),
        ("target_epochs(\"a@x\")", f64::INFINITY),
        ("noise(\"seconds\", \"b@x\")", 2f64.sqrt()),
        ("typical(\"seconds\", \"b@x\")", 3.0),
        ("if diverged(\"a@x\") == 0.0 { 7.0 } else { 8.0 }", 7.0),
    ] {
        let value = evaluate(expression, 1, &results()).expect("the expression is valid");
        assert_eq!(value, Some(expected), "{expression}");
    }
}

#[test]
fn items_are_counted_one_by_one() {
    let mut claim = claim("seconds(\"$@x\")", "part >= 0.5");
    (claim.each, claim.item) = (vec!["a".into(), "b".into()], Some("x > 3.0".into()));

    let finding = find(&claim, &[1, 2], &results()).expect("the claim is valid");

    assert_eq!(finding.ours, "4.00x (3.00x to 5.00x); in 3 of 4");
    assert_eq!(finding.verdict, Verdict::Holds);
}

#[test]
fn a_claim_about_a_missing_run_is_not_decided() {
    let finding = find(&claim("seconds(\"c@x\")", "true"), &[1], &results()).expect("no error");

    assert_eq!(finding.verdict, Verdict::NotRun { run: "c@x".into() });
}

#[test]
fn an_invalid_rule_is_an_error_that_names_its_claim() {
    for (ours, holds) in
        [("secnds(\"a@x\")", "true"), ("1.0", "mean >"), ("1.0", "mean + 1"), ("1.0", "meen > 1.0")]
    {
        let error = find(&claim(ours, holds), &[1], &results()).expect_err("the claim is invalid");
        assert!(error.to_string().starts_with("claim \"c\":"), "{error}");
        let before = check(&claim(ours, holds), &checker());
        assert_eq!(before, Err(error), "the error is the same before and after the runs");
    }
    let valid = claim("seconds(\"a@x\")", "mean > noise(\"loss\", \"a@x\")");
    assert_eq!(check(&valid, &checker()), Ok(()));
}

#[test]
fn a_run_that_no_size_has_is_an_error_before_any_run() {
    for (ours, holds, run) in [
        ("seconds(\"nope@x\")", "true", "nope@x"),
        ("seconds(\"a@x\") / seconds(\"nope@x\")", "true", "nope@x"),
        ("least(all(\"seconds\", [\"a\", \"nope\"], \"x\"))", "true", "nope@x"),
        ("seconds(\"a@x\")", "mean > noise(\"loss\", \"nope@x\")", "nope@x"),
    ] {
        let error = check(&claim(ours, holds), &checker()).expect_err("the run is unknown");
        let expected = format!("claim \"c\": there is no run `{run}`; ");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

fn checker() -> Checker {
    Checker::new(["a@x", "b@x"].map(str::to_owned).into_iter())
}

#[test]
fn a_rule_about_a_missing_run_is_not_decided() {
    let mut claim = claim("seconds(\"a@x\")", "part > 0.0");
    claim.item = Some("x > seconds(\"c@x\")".into());

    let finding = find(&claim, &[1], &results()).expect("no error");

    assert!(matches!(finding.verdict, Verdict::NotRun { .. }), "{:?}", finding.verdict);
}
