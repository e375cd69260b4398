//! The table of `paceline compare`: one row per strategy, over one or several seeds.

use std::cmp::Ordering;

use paceline_job::RunResult;
use paceline_watch::table::{bytes, duration, table};

use crate::rates::Rates;
use crate::summary::{loss, percent, rate};

/// The results of all runs: those of one strategy together, the fastest strategy first.
pub struct Comparison<'a> {
    strategies: Vec<Seeds<'a>>,
}

/// The results of one strategy, by seed.
struct Seeds<'a>(Vec<&'a RunResult>);

impl<'a> Comparison<'a> {
    pub fn new(results: impl Iterator<Item = &'a RunResult>) -> Comparison<'a> {
        let mut strategies: Vec<Seeds<'a>> = vec![];
        for result in results {
            match strategies.iter_mut().find(|of| of.name() == result.strategy) {
                Some(of) => of.0.push(result),
                None => strategies.push(Seeds(vec![result])),
            }
        }
        strategies.iter_mut().for_each(|of| of.0.sort_by_key(|result| result.seed));
        strategies.sort_by(Seeds::by_time_to_target);
        Comparison { strategies }
    }

    /// All results, in the order of the table.
    pub fn results(&self) -> impl Iterator<Item = &'a RunResult> {
        self.strategies.iter().flat_map(|of| of.0.iter().copied())
    }

    /// The strategies, in the order of the table.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.strategies.iter().map(Seeds::name)
    }

    /// The table as text.
    pub fn table(&self, rates: &Rates) -> String {
        let (header, rows) = self.cells(rates);
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let align_right: Vec<bool> = (0..header.len()).map(|column| column > 0).collect();
        table(&header, &rows, &align_right)
    }

    /// The header of the table, and its rows.
    pub fn cells(&self, rates: &Rates) -> (Vec<String>, Vec<Vec<String>>) {
        let reached = |of: &&Seeds<'_>| of.mean_to_target().is_some();
        // Speedups are relative to plain synchronous SGD, or to the fastest strategy if ssgd did not reach the target.
        let base = self.strategies.iter().filter(reached).find(|of| of.name() == "ssgd");
        let base = base.or(self.strategies.first().filter(reached));
        let speedup = base.map_or("speedup".to_owned(), |base| format!("x {}", base.name()));
        let header = [
            "strategy",
            "to target",
            &speedup,
            "total",
            "test accuracy",
            "validation loss",
            "training loss",
            "sent",
            "utilization",
            "rate",
            "batch",
        ];
        let rows = self.strategies.iter().map(|of| of.row(base, rates)).collect();
        (header.map(str::to_owned).to_vec(), rows)
    }
}

impl Seeds<'_> {
    fn name(&self) -> &str {
        &self.0[0].strategy
    }

    fn diverged(&self) -> usize {
        self.0.iter().filter(|result| result.diverged.is_some()).count()
    }

    fn times(&self) -> impl Iterator<Item = f64> {
        self.0.iter().filter_map(|result| result.seconds_to_target)
    }

    /// The mean time to the target, if every seed reached it.
    fn mean_to_target(&self) -> Option<f64> {
        let times: Vec<f64> = self.times().collect();
        (times.len() == self.0.len()).then(|| mean(&times))
    }

    /// Orders by time to target; strategies that did not reach it with all seeds follow, those that diverged come last.
    fn by_time_to_target(a: &Seeds<'_>, b: &Seeds<'_>) -> Ordering {
        let key = |of: &Seeds<'_>| {
            let time = of.mean_to_target().unwrap_or(f64::INFINITY);
            (of.diverged(), time, of.mean_of(|result| result.validation_loss))
        };
        let ((a_diverged, a_time, a_loss), (b_diverged, b_time, b_loss)) = (key(a), key(b));
        let (by_time, by_loss) = (a_time.total_cmp(&b_time), a_loss.total_cmp(&b_loss));
        a_diverged.cmp(&b_diverged).then(by_time).then(by_loss)
    }

    /// The mean over the seeds that did not diverge.
    fn mean_of(&self, value: impl Fn(&RunResult) -> f64) -> f64 {
        let converged = self.0.iter().filter(|result| result.diverged.is_none());
        mean(&converged.map(|result| value(result)).collect::<Vec<_>>())
    }

    fn to_target(&self) -> String {
        let times: Vec<f64> = self.times().collect();
        match (self.0.len(), times.len()) {
            (1, _) if self.diverged() == 1 => "diverged".to_owned(),
            (1, 0) => "not reached".to_owned(),
            (1, _) => duration(times[0]),
            (seeds, _) if self.diverged() > 0 => {
                format!("diverged in {} of {seeds}", self.diverged())
            }
            (seeds, reached) if reached < seeds => format!("reached in {reached} of {seeds}"),
            _ => format!("{} ± {}", duration(mean(&times)), duration(deviation(&times))),
        }
    }

    /// The geometric mean over the seeds of how many times sooner than `base` the target was reached.
    fn speedup(&self, base: &Seeds<'_>) -> Option<f64> {
        let log = |of: &Seeds<'_>| of.mean_to_target().map(|_| mean(&of.logs()));
        Some((log(base)? - log(self)?).exp())
    }

    fn logs(&self) -> Vec<f64> {
        self.times().map(f64::ln).collect()
    }

    fn row(&self, base: Option<&Seeds<'_>>, rates: &Rates) -> Vec<String> {
        let first = self.0[0];
        let origin = rates.origin(self.name()).name();
        let speedup = base.and_then(|base| self.speedup(base));
        vec![
            self.name().to_owned(),
            self.to_target(),
            speedup.map_or("-".to_owned(), |speedup| format!("{speedup:.2}")),
            duration(mean(&self.0.iter().map(|result| result.seconds()).collect::<Vec<_>>())),
            percent(self.mean_of(|result| result.accuracy)),
            loss(self.mean_of(|result| result.validation_loss)),
            loss(self.mean_of(|result| result.loss)),
            bytes(self.0.iter().map(|result| result.bytes_sent).sum::<u64>() / self.0.len() as u64),
            percent(mean(
                &self.0.iter().map(|result| result.utilization_mean()).collect::<Vec<_>>(),
            )),
            format!("{} {origin}", rate(first.learning_rate)),
            first.batch.to_string(),
        ]
    }
}

/// Not a number if there is nothing.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(strategy: &str, seed: u64, seconds_to_target: Option<f64>) -> RunResult {
        let strategy = strategy.to_owned();
        RunResult { strategy, seed, seconds_to_target, ..RunResult::default() }
    }

    #[test]
    fn seeds_are_shown_as_mean_and_deviation_and_a_miss_is_not_averaged_away() {
        let results = [
            result("ssgd", 1, Some(2.0)),
            result("abs", 1, Some(1.0)),
            result("lucky", 1, Some(0.1)),
            result("ssgd", 2, Some(4.0)),
            result("abs", 2, Some(1.0)),
            result("lucky", 2, None),
        ];

        let comparison = Comparison::new(results.iter());

        let names: Vec<&str> = comparison.results().map(|it| it.strategy.as_str()).collect();
        assert_eq!(names, ["abs", "abs", "ssgd", "ssgd", "lucky", "lucky"]);
        let rates = Rates::new(None, &[], &[]).expect("nothing is tuned");
        let text = comparison.table(&rates);
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a row");
        assert!(row("ssgd").contains("3.00 s ± 1.41 s") && row("ssgd").contains("1.00"), "{text}");
        assert!(row("abs").contains("2.83"), "the geometric mean of 2 and 4: {text}");
        assert!(row("lucky").contains("reached in 1 of 2"), "{text}");
    }
}
