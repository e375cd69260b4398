//! What a run came to, small enough to be kept.

use std::collections::BTreeMap;

use paceline_job::RunResult;
use paceline_runtime::journal::number;
use paceline_runtime::{Line, Reader, Record};
use paceline_watch::{Curves, Point};
use serde::{Deserialize, Serialize};

/// One run's result: a line of a file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub run: String,
    pub seed: u64,
    /// Which job on which cluster it was.
    pub key: String,
    pub commit: String,
    pub command: String,
    /// Whether it was trained on another cluster and only timed on this one.
    pub retimed: bool,
    pub rate: f32,
    pub seconds: f64,
    pub to_target: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
    pub bytes: u64,
    pub rounds: u64,
    pub epochs: f64,
    pub period: Option<f64>,
    /// The part of its time that a worker computes: the mean over workers, and the least.
    pub busy: f64,
    pub busy_least: f64,
    pub staleness: u64,
    pub diverged: Option<String>,
    /// By name: seconds, epochs and value of each point.
    pub curves: BTreeMap<String, Vec<[f64; 3]>>,
}

/// A curve has so many points at most; scores are all kept.
const POINTS: usize = 40;

/// Reads a journal into the curves that are kept.
#[derive(Default)]
pub struct Kept {
    curves: Curves,
    members: Vec<[f64; 3]>,
}

impl Reader for Kept {
    fn read(&mut self, line: &Line) {
        self.curves.read(line);
        if let Record::View { members, .. } = &line.record {
            let samples = self.curves.samples() as f64;
            // Epochs are filled in when it is known how long they are.
            self.members.push([line.at.as_secs_f64(), samples, members.len() as f64]);
        }
    }
}

impl Kept {
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
            // A growth by many is a view for each: the last of one moment is what counts.
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

/// Means of neighbours. What is no number has no place in a file: JSON knows none.
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

/// Five digits are more than a figure shows.
fn short(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(f64::NAN)
}

impl Measurement {
    /// What stands for any result of a run while rules are checked.
    pub(crate) fn made_up(run: String) -> Measurement {
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
            to_target: outcome.time_to_target_seconds,
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

    /// A number by its name. What a run never reaches is infinite, and what it costs to come apart is too:
    /// a diverged run is neither fast nor cheap.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let gone = self.diverged.is_some();
        Some(match name {
            "seconds" | "bytes" | "epochs" if gone => f64::INFINITY,
            "seconds" => self.seconds,
            "target_epochs" => self.target_epochs().unwrap_or(f64::INFINITY),
            "target_time" => self.to_target.unwrap_or(f64::INFINITY),
            "loss" if gone => f64::INFINITY,
            "loss" => self.loss,
            "accuracy" if gone || self.accuracy.is_nan() => 0.0,
            "accuracy" => self.accuracy,
            "bytes" => self.bytes as f64,
            "rounds" => self.rounds as f64,
            "epochs" => self.epochs,
            "period" => self.period.unwrap_or(1.0),
            "busy" => self.busy,
            "busy_least" => self.busy_least,
            "staleness" => self.staleness as f64,
            "rate" => f64::from(self.rate),
            "diverged" => f64::from(u8::from(gone)),
            _ => return None,
        })
    }

    /// A curve where its seconds (column 0) or epochs (column 1) are `x`, between points by interpolation,
    /// after the last as there; before the first there is nothing.
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

    /// A curve's value there. Before the first point, and of a run that came apart, the worst there is.
    pub fn value_at(&self, curve: &str, column: usize, x: f64) -> f64 {
        let worst = if curve == "accuracy" { 0.0 } else { f64::INFINITY };
        let point = self.at(curve, column, x).filter(|_| self.diverged.is_none());
        point.map_or(worst, |point| point[2])
    }

    /// How many epochs it took to the target.
    fn target_epochs(&self) -> Option<f64> {
        Some(self.at("loss", 0, self.to_target?)?[1])
    }

    /// How long the k-th epoch took, counted from 1: scores are made when an epoch ends.
    pub fn epoch_seconds(&self, k: usize) -> Option<f64> {
        let ends = self.curves.get("accuracy")?;
        let end = ends.get(k.checked_sub(1)?)?[0];
        let start = if k == 1 { 0.0 } else { ends[k - 2][0] };
        Some(end - start)
    }
}

/// Results by run and seed.
#[derive(Clone, Debug, Default)]
pub struct Results {
    runs: BTreeMap<String, BTreeMap<u64, Measurement>>,
    /// What the reader of a table must know, and what failed.
    pub remarks: Vec<String>,
    pub failures: Vec<String>,
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
    fn curves_are_thinned_to_means_and_hold_only_numbers() {
        let points: Vec<Point> = (0..100).map(|i| point(f64::from(i), f64::from(i))).collect();

        assert_eq!(thinned(&points, 40)[0], [10.0, 1.0, 1.0]);
        assert_eq!(thinned(&points, 40).len(), 34);
        assert_eq!(thinned(&points, usize::MAX).len(), 100);
        let apart = [point(1.0, 2.0), point(2.0, f64::NAN), point(3.0, f64::INFINITY)];
        assert_eq!(thinned(&apart, 40), [[10.0, 1.0, 2.0]]);
    }
}
