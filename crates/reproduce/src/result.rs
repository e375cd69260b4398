//! The results of runs, small enough to be stored with the code.

use std::collections::BTreeMap;

use paceline_job::RunResult;
use paceline_runtime::journal::number;
use paceline_runtime::{Line, Reader, Record};
use paceline_watch::{Curves, Point};
use serde::{Deserialize, Serialize};

use crate::error::RunFailure;

/// The metrics and curves of one run with one seed; one line of a results file.
///
/// Claims and figures read them by name, through [`Measurement::metric`] and [`Measurement::at`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The name of the run: `recipe@cluster` or `recipe/rate@cluster`.
    pub run: String,
    pub seed: u64,
    /// A digest of job and cluster ([`crate::Run::key`]): a result with another key is outdated.
    pub key: String,
    /// The version of the code that produced the result.
    pub commit: String,
    /// The command line that repeats this run.
    pub command: String,
    /// Whether the training was reused from another cluster and only timed on this one.
    pub retimed: bool,
    /// The learning rate.
    pub rate: f32,
    /// The duration of the run in virtual seconds.
    pub seconds: f64,
    /// The virtual seconds until the target was reached, if it was.
    pub to_target: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
    pub bytes: u64,
    pub rounds: u64,
    pub epochs: f64,
    /// The mean period, for strategies that have one.
    pub period: Option<f64>,
    /// The fraction of the time that workers compute: mean and minimum over workers.
    pub busy: f64,
    pub busy_least: f64,
    /// The maximum over all gradients.
    pub staleness: u64,
    /// A message if training diverged.
    pub diverged: Option<String>,
    /// Curves by name; a point is seconds, epochs and value.
    pub curves: BTreeMap<String, Vec<[f64; 3]>>,
}

/// The maximal number of stored points of a curve, except for evaluations, which are all stored.
const POINTS: usize = 40;

/// Reads a journal and records the curves of a measurement.
#[derive(Default)]
pub struct CurveRecorder {
    curves: Curves,
    /// Seconds, samples and members at each change of view.
    members: Vec<[f64; 3]>,
}

impl Reader for CurveRecorder {
    fn read(&mut self, line: &Line) {
        self.curves.read(line);
        if let Record::View { members, .. } = &line.record {
            let samples = self.curves.samples() as f64;
            // Samples are converted to epochs in `curves`, where the length of an epoch is known.
            self.members.push([line.at.as_secs_f64(), samples, members.len() as f64]);
        }
    }
}

impl CurveRecorder {
    pub fn curves(&self, samples_per_epoch: u64) -> BTreeMap<String, Vec<[f64; 3]>> {
        let mut all = BTreeMap::new();
        let mut keep = |name: &str, points: &[Point], points_max: usize| {
            let points = thinned(points, points_max);
            if !points.is_empty() {
                all.insert(name.to_owned(), points);
            }
        };
        keep("loss", self.curves.loss(), POINTS);
        keep("rate", self.curves.rate(), POINTS);
        keep("accuracy", self.curves.accuracy(), usize::MAX);
        keep("test_loss", self.curves.test_loss(), usize::MAX);
        for name in self.curves.notes() {
            keep(name, self.curves.note(name), POINTS);
        }
        if self.members.iter().any(|point| point[2] != self.members[0][2]) {
            let epochs = |point: &[f64; 3]| {
                [short(point[0]), short(point[1] / samples_per_epoch as f64), point[2]]
            };
            // When several workers join at once, each of them makes a view; only the last of these counts.
            let mut members: Vec<[f64; 3]> = Vec::new();
            for point in self.members.iter().map(epochs) {
                members.pop_if(|last| last[1] == point[1]);
                members.push(point);
            }
            all.insert("members".to_owned(), members);
        }
        all
    }
}

/// Averages neighboring points. Non-finite values are omitted, because JSON cannot represent them.
fn thinned(points: &[Point], points_max: usize) -> Vec<[f64; 3]> {
    let finite: Vec<Point> =
        points.iter().filter(|point| point.value.is_finite()).copied().collect();
    let each = finite.len().div_ceil(points_max).max(1);
    let mean = |some: &[Point]| {
        let of = |value: fn(&Point) -> f64| some.iter().map(value).sum::<f64>() / some.len() as f64;
        [of(|p| p.at), of(|p| p.epochs), of(|p| p.value)].map(short)
    };
    finite.chunks(each).map(mean).collect()
}

/// Rounds to five significant digits, more than a figure shows.
fn short(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(f64::NAN)
}

impl Measurement {
    /// A result with plausible numbers, for checking expressions before any run.
    pub(crate) fn placeholder(run: String) -> Measurement {
        Measurement {
            run,
            seed: 0,
            key: String::new(),
            commit: String::new(),
            command: String::new(),
            retimed: false,
            rate: 1.0,
            seconds: 1.0,
            to_target: Some(1.0),
            loss: 1.0,
            accuracy: 1.0,
            bytes: 1,
            rounds: 1,
            epochs: 1.0,
            period: None,
            busy: 1.0,
            busy_least: 1.0,
            staleness: 1,
            diverged: None,
            curves: BTreeMap::new(),
        }
    }

    /// The measurement of a run that ended; the caller fills in `commit`, `command` and `retimed`.
    pub fn new(
        run: &crate::Run,
        outcome: &RunResult,
        curves: BTreeMap<String, Vec<[f64; 3]>>,
    ) -> Measurement {
        let utilization = &outcome.utilization;
        Measurement {
            run: run.name.clone(),
            seed: run.job.seed,
            key: run.key(),
            commit: String::new(),
            command: String::new(),
            retimed: false,
            rate: outcome.learning_rate,
            seconds: outcome.seconds(),
            to_target: outcome.seconds_to_target,
            loss: outcome.loss,
            accuracy: outcome.accuracy,
            bytes: outcome.bytes_sent,
            rounds: outcome.rounds,
            epochs: outcome.epochs,
            period: outcome.period_mean,
            busy: outcome.utilization_mean(),
            busy_least: utilization.iter().copied().fold(1.0, f64::min),
            staleness: outcome.staleness_max,
            diverged: outcome.diverged.clone(),
            curves,
        }
    }

    /// A metric by its name; `None` if there is no such metric.
    ///
    /// The time to a target that was not reached is infinite. So are time, bytes, epochs and loss of a diverged run,
    /// so that no claim counts it as fast or cheap.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let diverged = self.diverged.is_some();
        Some(match name {
            "seconds" | "bytes" | "epochs" if diverged => f64::INFINITY,
            "seconds" => self.seconds,
            "target_epochs" => self.target_epochs().unwrap_or(f64::INFINITY),
            "target_time" => self.to_target.unwrap_or(f64::INFINITY),
            "loss" if diverged => f64::INFINITY,
            "loss" => self.loss,
            "accuracy" if diverged || self.accuracy.is_nan() => 0.0,
            "accuracy" => self.accuracy,
            "bytes" => self.bytes as f64,
            "rounds" => self.rounds as f64,
            "epochs" => self.epochs,
            "period" => self.period.unwrap_or(1.0),
            "busy" => self.busy,
            "busy_least" => self.busy_least,
            "staleness" => self.staleness as f64,
            "rate" => f64::from(self.rate),
            "diverged" => f64::from(u8::from(diverged)),
            _ => return None,
        })
    }

    /// The point of a curve at which seconds (column 0) or epochs (column 1) equal `x`: interpolated between points,
    /// the last point after the end, `None` before the first.
    pub fn at(&self, curve: &str, column: usize, x: f64) -> Option<[f64; 3]> {
        let points = self.curves.get(curve)?;
        match points.iter().position(|point| point[column] >= x) {
            None => points.last().copied(),
            Some(0) => (points[0][column] == x).then_some(points[0]),
            Some(i) => {
                let (before, after) = (points[i - 1], points[i]);
                let part = (x - before[column]) / (after[column] - before[column]);
                Some([0, 1, 2].map(|c| before[c] + part * (after[c] - before[c])))
            }
        }
    }

    /// The value of a curve at `x`; the worst possible value before the first point and for a diverged run.
    pub fn value_at(&self, curve: &str, column: usize, x: f64) -> f64 {
        let worst = if curve == "accuracy" { 0.0 } else { f64::INFINITY };
        let point = self.at(curve, column, x).filter(|_| self.diverged.is_none());
        point.map_or(worst, |point| point[2])
    }

    /// The number of epochs until the target was reached.
    fn target_epochs(&self) -> Option<f64> {
        Some(self.at("loss", 0, self.to_target?)?[1])
    }

    /// The duration of the k-th epoch, counted from 1; every epoch ends with an evaluation.
    pub fn epoch_seconds(&self, k: usize) -> Option<f64> {
        let ends = self.curves.get("accuracy")?;
        let end = ends.get(k.checked_sub(1)?)?[0];
        let start = if k == 1 { 0.0 } else { ends[k - 2][0] };
        Some(end - start)
    }
}

/// Measurements by run and seed.
#[derive(Clone, Debug, Default)]
pub struct Results {
    runs: BTreeMap<String, BTreeMap<u64, Measurement>>,
    /// Notes for readers of the results.
    pub remarks: Vec<String>,
    pub failures: Vec<RunFailure>,
}

impl Results {
    pub fn add(&mut self, result: Measurement) {
        self.runs.entry(result.run.clone()).or_default().insert(result.seed, result);
    }

    pub fn get(&self, run: &str, seed: u64) -> Option<&Measurement> {
        self.runs.get(run)?.get(&seed)
    }

    /// All seeds of a run.
    pub fn seeds(&self, run: &str) -> impl Iterator<Item = &Measurement> {
        self.runs.get(run).into_iter().flat_map(|seeds| seeds.values())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.runs.keys().map(String::as_str)
    }

    pub fn all(&self) -> impl Iterator<Item = &Measurement> {
        self.runs.values().flat_map(|seeds| seeds.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(epochs: f64, value: f64) -> Point {
        Point { at: 10.0 * epochs, epochs, value }
    }

    #[test]
    fn curves_are_thinned_to_means_and_omit_non_finite_values() {
        let points: Vec<Point> = (0..100).map(|i| point(f64::from(i), f64::from(i))).collect();

        assert_eq!(thinned(&points, 40)[0], [10.0, 1.0, 1.0]);
        assert_eq!(thinned(&points, 40).len(), 34);
        assert_eq!(thinned(&points, usize::MAX).len(), 100);
        let diverged = [point(1.0, 2.0), point(2.0, f64::NAN), point(3.0, f64::INFINITY)];
        assert_eq!(thinned(&diverged, 40), [[10.0, 1.0, 2.0]]);
    }
}
