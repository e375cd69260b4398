//! Whether a run has learned anything: its loss at the end, compared with guessing.

use paceline_job::{Prepared, RunResult};

/// A model that has learned nothing but the frequency of the classes ends a little below ln(classes), and losses are
/// noisy.
const MARGIN: f64 = 0.01;

/// Says that the training loss ended no better than chance: ln(classes) for a classifier, and for models without
/// classes the loss at the beginning of the job. `None` if the loss is better, or not known, or if the run was too
/// short to learn anything: less than an epoch, or a single round.
pub fn no_better_than_chance(
    prepared: &Prepared,
    result: &RunResult,
    loss_first: Option<f64>,
) -> Option<String> {
    let loss_last = result.loss;
    if result.epochs < 1.0 || result.rounds < 2 {
        return None;
    }
    let ended = format!("{loss_last:.4}");
    match prepared.task.train.classes() {
        classes @ 2.. => {
            let chance = (classes as f64).ln();
            (loss_last >= (1.0 - MARGIN) * chance).then(|| {
                format!(
                    "the training loss ended at {ended}, no better than guessing among {classes} classes ({chance:.4}); try another learning rate, or more epochs"
                )
            })
        }
        _ => {
            // Programs of users' own need not report losses; all are then 0.
            let first = loss_first.filter(|loss| *loss != 0.0)?;
            (loss_last >= first - MARGIN * first.abs()).then(|| {
                format!(
                    "the training loss ended at {ended}, no better than at the beginning ({first:.4}); try another learning rate, or more epochs"
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_job::Job;

    use super::*;

    fn said(model: &str, data: &str, losses: (Option<f64>, f64)) -> Option<String> {
        let job = Job { model: model.into(), data: data.into(), ..Job::default() };
        let result = RunResult { epochs: 1.0, rounds: 2, loss: losses.1, ..RunResult::default() };
        no_better_than_chance(&job.prepare(2).expect("the job is valid"), &result, losses.0)
    }

    /// ln(10) = 2.3026. The loss at the beginning says nothing about a classifier: it may begin worse than chance.
    #[test]
    fn a_classifier_is_compared_with_the_logarithm_of_its_classes() {
        for (last, is_said) in [(2.31, true), (2.29, true), (2.2, false), (f64::NAN, false)] {
            let said = said("mlp", "digits", (Some(2.0), last));
            assert_eq!(said.is_some(), is_said, "{last}");
        }
    }

    #[test]
    fn a_run_that_is_too_short_to_learn_is_not_judged() {
        let prepared = Job::default().prepare(2).expect("the job is valid");
        for (epochs, rounds) in [(0.9, 30), (1.0, 1)] {
            let result = RunResult { epochs, rounds, loss: 9.0, ..RunResult::default() };
            assert_eq!(no_better_than_chance(&prepared, &result, None), None);
        }
    }

    #[test]
    fn a_loss_without_classes_is_compared_with_its_beginning() {
        for (first, last, is_said) in [
            (Some(8.0), 8.1, true),
            (Some(8.0), 0.3, false),
            (None, 8.0, false),
            (Some(0.0), 0.0, false),
        ] {
            let said = said("quadratic", "noise", (first, last));
            assert_eq!(said.is_some(), is_said, "{first:?} {last}");
        }
    }
}
