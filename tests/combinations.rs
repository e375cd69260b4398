//! Every combination of choices either runs or is refused with a one-line message; docs/combinations.md says which.

use std::sync::Arc;

use paceline::learn::{Noise, Optimizer, Quadratic, Rescale, Rule, Shape};
use paceline::runtime::codec::Codec;
use paceline::strategies::parts::{Every, Outer, Period, Shares};
use paceline::{
    Choices, Job, PrepareOptions, Scenario, SimulateOptions, StrategyKind, Task, simulate,
};

type MakeChoices = Box<dyn Fn(StrategyKind) -> Choices>;
type Axis<T> = Vec<(&'static str, T)>;

fn shares() -> Axis<Shares> {
    let by_speed = |every| Shares::BySpeed { every, smoothing: 0.5 };
    vec![
        ("even", Shares::Even),
        ("by_speed, each epoch", by_speed(Every::Epoch)),
        ("by_speed, each round", by_speed(Every::Round)),
        ("open", Shares::Open),
    ]
}

fn periods() -> Axis<Period> {
    vec![
        ("one step", Period::Constant { steps: 1 }),
        ("constant", Period::Constant { steps: 3 }),
        ("adaptive", Period::adaptive(2)),
        ("decreasing", Period::Decreasing { first: 3 }),
        ("post_local", Period::PostLocal { steps: 3 }),
        ("qsr", Period::Qsr { steps_min: 2, growth: 0.02, steps_max: 6 }),
    ]
}

fn rescales() -> Axis<Rescale> {
    vec![
        ("none", Rescale::None),
        ("fixed_batch", Rescale::FixedBatch),
        ("linear", Rescale::Linear),
        ("smooth", Rescale::Smooth),
        ("adascale", Rescale::Adascale),
    ]
}

fn codecs() -> Axis<Codec> {
    vec![
        ("dense", Codec::Dense),
        ("half", Codec::Half),
        ("qsgd", Codec::Qsgd { bits: 8, bucket: 512 }),
        ("top_k", Codec::TopK { fraction: 0.2 }),
    ]
}

fn outers() -> Axis<Outer> {
    vec![
        ("none", Outer::None),
        ("slowmo", Outer::SlowMo { rate: 1.0, momentum: 0.5 }),
        ("diloco", Outer::Diloco { rate: 0.7, momentum: 0.9 }),
    ]
}

#[test]
fn every_combination_runs_or_is_refused_with_a_one_line_message() {
    let task = tiny_task();
    let scenario = Scenario { workers: 3, ..Scenario::default() };
    let (mut ran, mut refused) = (0, 0);
    for strategy in StrategyKind::ALL {
        for (_, shares) in shares() {
            for (_, period) in periods() {
                for (_, rescale) in rescales() {
                    for (_, codec) in codecs() {
                        for (_, outer) in outers() {
                            let period = period.clone();
                            let parts = Choices::of(strategy);
                            let choices =
                                Choices { shares, period, rescale, codec, outer, ..parts };
                            match choices.check() {
                                Ok(()) => {
                                    run(&choices, &task, &scenario);
                                    ran += 1;
                                }
                                Err(message) => {
                                    assert!(
                                        is_one_line_with_advice(&message.to_string()),
                                        "{message:?}: {choices:?}"
                                    );
                                    refused += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    println!("{ran} ran, {refused} were refused");
    assert!(ran > 500 && refused > ran);
}

#[test]
fn every_strategy_runs_with_every_optimizer_and_schedule() {
    let sgd = |nesterov| Rule::Sgd { momentum: 0.5, nesterov, weight_decay: 1e-3 };
    let adamw = Rule::Adamw { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.01 };
    let shapes = [
        Shape::Constant,
        Shape::Step { at: vec![0.5], factor: 0.1 },
        Shape::Cosine { floor: 0.01 },
        Shape::OneCycle,
    ];
    for strategy in StrategyKind::ALL {
        for rule in [sgd(false), sgd(true), adamw.clone()] {
            for (schedule, clip_norm) in
                shapes.iter().cloned().zip([None, Some(0.5)].into_iter().cycle())
            {
                let warm_up = if schedule == Shape::OneCycle { 0.0 } else { 0.1 };
                let optimizer = Some(Optimizer { rule: rule.clone(), clip_norm });
                let rest = tiny_job(&Choices::of(strategy));
                let job = Job { optimizer, schedule, warm_up, ..rest };
                run_job(&job, &tiny_task(), &Scenario { workers: 3, ..Scenario::default() });
            }
        }
    }
}

fn tiny_task() -> Task {
    let model = Arc::new(Quadratic { curvature: vec![0.5; 6], noise: 0.1 });
    Task {
        model,
        train: Arc::new(Noise { len: 40 }),
        validation: None,
        test: Arc::new(Noise { len: 1 }),
    }
}

fn tiny_job(choices: &Choices) -> Job {
    Job {
        choices: Some(choices.clone()),
        epochs: 1.5,
        batch: Some(4),
        learning_rate: Some(0.01),
        ..Job::default()
    }
}

fn run(choices: &Choices, task: &Task, scenario: &Scenario) {
    run_job(&tiny_job(choices), task, scenario);
}

fn run_job(job: &Job, task: &Task, scenario: &Scenario) {
    let choices = &job.choices;
    let prepared = job.prepare_with(PrepareOptions {
        task: Some(task.clone()),
        ..PrepareOptions::new(scenario.workers)
    });
    let prepared = prepared.unwrap_or_else(|message| panic!("{message}: {choices:?}"));
    let outcome = simulate(&prepared, scenario, SimulateOptions::default())
        .unwrap_or_else(|failure| panic!("{failure}: {choices:?}"))
        .result;
    assert_eq!((outcome.ledger.done, outcome.ledger.repeated), (60, 0), "{choices:?}");
    assert!(outcome.loss.is_finite() && outcome.diverged.is_none(), "{choices:?}");
}

/// Whether a message is one line that says what to choose.
fn is_one_line_with_advice(text: &str) -> bool {
    let advice = ["choose", "omit", "give"];
    !text.contains('\n') && text.len() < 220 && advice.iter().any(|word| text.contains(word))
}

#[test]
fn the_documented_table_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/combinations.md");
    let table = document();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &table).expect("the docs can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == table,
        "docs/combinations.md is out of date: UPDATE=1 cargo test --test combinations rewrites it"
    );
}

fn document() -> String {
    let mut out = String::from(
        "# Allowed combinations\n\n\
         Generated by `UPDATE=1 cargo test --test combinations`; the same test runs every allowed combination.\n\n\
         Each table has a column for every strategy and a row for every value of one choice. All other choices have their\n\
         defaults: shares even, a period of one step, no rescaling, the dense codec, no outer step. A number refers to the error\n\
         message at the end of this page. Two pairs of choices are also rejected: `open` shares with `fixed_batch` or `smooth`,\n\
         because open batches have no nominal size that the learning rate could follow; and `adascale` with uneven shares or with\n\
         a lossy codec.\n\n",
    );
    let names: Vec<&str> = StrategyKind::ALL.iter().map(|kind| kind.name()).collect();
    let mut reasons: Vec<String> = Vec::new();
    let mut table = |axis: &str, rows: Axis<MakeChoices>| {
        out +=
            &format!("| {axis} | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
        for (name, make) in rows {
            let cells: Vec<String> = StrategyKind::ALL
                .iter()
                .map(|kind| match make(*kind).check() {
                    Ok(()) => "yes".into(),
                    Err(why) => {
                        let why = why.to_string().replace(kind.name(), "this strategy");
                        let at = reasons.iter().position(|known| *known == why);
                        let at = at.unwrap_or_else(|| {
                            reasons.push(why);
                            reasons.len() - 1
                        });
                        format!("no ({})", at + 1)
                    }
                })
                .collect();
            out += &format!("| {name} | {} |\n", cells.join(" | "));
        }
        out += "\n";
    };
    macro_rules! rows {
        ($axis:expr, $field:ident) => {
            $axis
                .into_iter()
                .map(|(name, choice)| {
                    let make: MakeChoices = Box::new(move |kind| Choices {
                        $field: choice.clone(),
                        ..Choices::of(kind)
                    });
                    (name, make)
                })
                .collect()
        };
    }
    table("shares", rows!(shares(), shares));
    table("period", rows!(periods(), period));
    table("rescale", rows!(rescales(), rescale));
    table("codec", rows!(codecs(), codec));
    table("outer step", rows!(outers(), outer));
    table("lead_max", rows!(vec![("given", Some(3))], lead_max));
    out += "Error messages:\n\n";
    for (i, reason) in reasons.iter().enumerate() {
        out += &format!("{}. {reason}\n", i + 1);
    }
    out
}
