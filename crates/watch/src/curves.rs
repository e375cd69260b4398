//! Loss, accuracy, learning rate and strategy metrics of a run, over time and over epochs.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_runtime::journal::{Past, PastLoss, PastScore, weight_of};
use paceline_runtime::{Line, Reader, Record, SampleTally};

pub use crate::series::Point;
use crate::series::Series;

/// Finer bins would show more noise than training loss.
const BINS_PER_EPOCH: u64 = 20;

/// Reads a journal into curves. Memory use grows with the number of workers, not with the length of the run.
#[derive(Clone, Debug)]
pub struct Curves {
    tally: SampleTally,
    loss: Series,
    test_loss: Series,
    accuracy: Series,
    rate: Series,
    notes: BTreeMap<String, Series>,
}

impl Default for Curves {
    fn default() -> Curves {
        Curves {
            tally: SampleTally::default(),
            loss: Series::new(1),
            test_loss: Series::new(1),
            accuracy: Series::new(1),
            rate: Series::new(1),
            notes: BTreeMap::new(),
        }
    }
}

impl Curves {
    /// The training loss per sample.
    pub fn loss(&self) -> &[Point] {
        self.loss.points()
    }

    /// The loss on the test set.
    pub fn test_loss(&self) -> &[Point] {
        self.test_loss.points()
    }

    /// The test accuracy, from 0 to 1.
    pub fn accuracy(&self) -> &[Point] {
        self.accuracy.points()
    }

    /// The learning rate.
    pub fn rate(&self) -> &[Point] {
        self.rate.points()
    }

    /// A metric noted by the strategy, as a mean over workers; empty if there is no such metric.
    pub fn note(&self, name: &str) -> &[Point] {
        self.notes.get(name).map_or(&[], Series::points)
    }

    /// The names of all metrics noted by the strategy.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.keys().map(String::as_str)
    }

    /// Samples applied so far. Samples that were lost with a center count again when they are applied again.
    pub fn samples(&self) -> u64 {
        self.tally.samples()
    }

    pub(crate) fn samples_per_epoch(&self) -> u64 {
        self.tally.samples_per_epoch
    }

    pub(crate) fn tally(&self) -> &SampleTally {
        &self.tally
    }

    /// Begins the curves anew, after training has started over.
    pub(crate) fn begin_anew(&mut self) {
        self.resume(&Past::default());
        self.notes.clear();
    }

    /// A run is resumed that was started again: its curves are those of its checkpoint.
    fn resume(&mut self, past: &Past) {
        let width = self.bin_width();
        (self.loss, self.rate) = (Series::new(width), Series::new(width));
        (self.test_loss, self.accuracy) = (Series::new(1), Series::new(1));
        let point = |tally: &SampleTally, at: Duration, samples, value| Point {
            at: at.as_secs_f64(),
            epochs: tally.epochs(samples),
            value,
        };
        for PastLoss { at, samples, loss, weight, rate } in past.losses.iter().copied() {
            let first = samples.saturating_sub(1);
            self.loss.add(first, point(&self.tally, at, samples, loss), weight);
            self.rate.add(first, point(&self.tally, at, samples, rate.into()), weight);
        }
        for PastScore { at, samples, loss, accuracy } in past.scores.iter().copied() {
            self.accuracy.add(samples, point(&self.tally, at, samples, accuracy), 1.0);
            self.test_loss.add(samples, point(&self.tally, at, samples, loss), 1.0);
        }
    }

    fn bin_width(&self) -> u64 {
        self.tally.samples_per_epoch / BINS_PER_EPOCH
    }

    fn point(&self, line: &Line, samples: u64, value: f64) -> Point {
        Point { at: line.at.as_secs_f64(), epochs: self.tally.epochs(samples), value }
    }
}

impl Reader for Curves {
    fn read(&mut self, line: &Line) {
        let new = self.tally.read(line);
        let samples = self.tally.samples();
        match &line.record {
            Record::Began { .. } => {
                self.loss = Series::new(self.bin_width());
                self.rate = Series::new(self.bin_width());
            }
            Record::Resumed { past: Some(past), .. } => self.resume(past),
            Record::Applied { spans, loss_sum, weight, rate, .. } if new > 0 => {
                let weight = weight_of(spans.len(), *weight);
                let rate = self.point(line, samples, f64::from(*rate));
                // Samples that are all masked have no mean loss.
                if weight != 0.0 {
                    let loss = self.point(line, samples, loss_sum / weight);
                    self.loss.add(samples - new, loss, weight / spans.len() as f64 * new as f64);
                }
                self.rate.add(samples - new, rate, new as f64);
            }
            Record::Scored { samples, accuracy, loss } => {
                let (right, loss) =
                    (self.point(line, *samples, *accuracy), self.point(line, *samples, *loss));
                self.accuracy.add(*samples, right, 1.0);
                self.test_loss.add(*samples, loss, 1.0);
            }
            Record::Note { name, value, .. } => {
                let point = self.point(line, samples, *value);
                let width = self.bin_width();
                if !self.notes.contains_key(name) {
                    self.notes.insert(name.clone(), Series::new(width));
                }
                let series = self.notes.get_mut(name).expect("the series was inserted above");
                series.add(samples, point, 1.0);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_runtime::{Spans, WorkerId};

    use super::*;

    /// Epochs of 200 samples, so that a bin holds 10.
    fn curves(together: bool) -> Curves {
        let mut curves = Curves::default();
        let began = Record::Began {
            version: 1,
            strategy: "any".to_owned(),
            seed: 1,
            samples_total: 1000,
            samples_per_epoch: 200,
            model: String::new(),
            data: String::new(),
            params: 3,
            kernels: String::new(),
            together,
            central: false,
        };
        read(&mut curves, 0, began);
        curves
    }

    fn read(curves: &mut Curves, seconds: u64, record: Record) {
        curves.read(&Line { at: Duration::from_secs(seconds), record });
    }

    fn applied(who: u32, from: u64, to: u64, loss: f64) -> Record {
        Record::Applied {
            who: WorkerId(who),
            version: 1,
            spans: Spans::one(from, to),
            loss_sum: loss * (to - from) as f64,
            weight: None,
            staleness: 0,
            rate: 0.5,
            round: None,
            result: None,
        }
    }

    fn values(points: &[Point]) -> Vec<f64> {
        points.iter().map(|point| point.value).collect()
    }

    #[test]
    fn samples_that_every_member_records_count_once() {
        let mut curves = curves(true);

        for (seconds, from) in [(1, 0), (2, 10)] {
            for who in 0..3 {
                read(&mut curves, seconds, applied(who, from, from + 10, seconds as f64));
            }
        }

        assert_eq!(curves.samples(), 20);
        let point = |at, epochs, value| Point { at, epochs, value };
        assert_eq!(curves.loss(), [point(1.0, 0.05, 1.0), point(2.0, 0.1, 2.0)]);
        assert_eq!(values(curves.rate()), [0.5, 0.5]);
    }

    /// A point is the loss per unit of weight; samples that are all masked have none.
    #[test]
    fn losses_are_divided_by_their_weight() {
        let mut curves = curves(true);
        for (seconds, weight) in [(1, None), (2, Some(40.0)), (3, Some(0.0))] {
            let mut record = applied(0, 10 * seconds, 10 * seconds + 10, 2.0);
            if let Record::Applied { weight: place, .. } = &mut record {
                *place = weight;
            }
            read(&mut curves, seconds, record);
        }

        assert_eq!(values(curves.loss()), [2.0, 0.5]);
        assert_eq!((curves.samples(), curves.rate().len()), (30, 3));
    }

    #[test]
    fn a_newcomer_continues_from_the_count_it_adopted() {
        let mut curves = curves(true);
        read(&mut curves, 1, applied(0, 0, 50, 3.0));

        let adopted = Some(WorkerId(0));
        read(&mut curves, 2, Record::Settled { who: WorkerId(7), view: 2, round: 1, adopted });
        read(&mut curves, 3, applied(7, 50, 60, 2.0));
        read(&mut curves, 3, applied(0, 50, 60, 2.0));

        assert_eq!(curves.samples(), 60);
        assert_eq!(values(curves.loss()), [3.0, 2.0]);
    }

    #[test]
    fn a_round_that_only_a_lost_member_finished_counts_once() {
        let mut curves = curves(true);
        read(&mut curves, 1, applied(0, 0, 10, 3.0));
        read(&mut curves, 1, applied(1, 0, 10, 3.0));
        read(&mut curves, 2, applied(0, 10, 20, 2.0));
        read(&mut curves, 2, Record::Crashed { who: WorkerId(0) });

        read(&mut curves, 3, applied(1, 10, 15, 2.5));
        read(&mut curves, 4, applied(1, 15, 25, 1.0));

        assert_eq!(curves.samples(), 25);
        assert_eq!(values(curves.loss()), [3.0, 2.0, 1.0]);
    }

    #[test]
    fn asynchronous_samples_count_unless_their_worker_was_freed_before() {
        let mut curves = curves(false);

        read(&mut curves, 1, applied(0, 0, 5, 4.0));
        read(&mut curves, 1, applied(1, 5, 10, 2.0));
        read(&mut curves, 2, Record::Freed { who: WorkerId(1), spans: Spans::one(10, 15) });
        read(&mut curves, 3, applied(1, 10, 15, 9.0));
        read(&mut curves, 4, applied(0, 10, 15, 1.0));

        assert_eq!(curves.samples(), 15);
        assert_eq!(values(curves.loss()), [3.0, 1.0]);
    }

    #[test]
    fn scores_and_notes_carry_time_and_epochs() {
        let mut curves = curves(true);
        read(&mut curves, 1, applied(0, 0, 100, 3.0));

        for (who, value) in [(0, 4.0), (1, 6.0)] {
            let name = "period".to_owned();
            read(&mut curves, 2, Record::Note { who: WorkerId(who), name, value, round: None });
        }
        read(&mut curves, 3, Record::Scored { samples: 100, loss: 2.0, accuracy: 0.75 });

        assert_eq!(curves.note("period"), [Point { at: 2.0, epochs: 0.5, value: 5.0 }]);
        assert_eq!(curves.accuracy(), [Point { at: 3.0, epochs: 0.5, value: 0.75 }]);
        assert_eq!(curves.note("variance"), []);
    }

    #[test]
    fn a_resumed_run_continues_the_sample_count() {
        for together in [true, false] {
            let mut curves = curves(together);
            let (loss_first, loss_last) = (None, None);
            let spans = Spans::one(0, 400);
            read(
                &mut curves,
                0,
                Record::Resumed {
                    round: 4,
                    version: 4,
                    spans,
                    loss_first,
                    loss_last,
                    samples_total: None,
                    past: None,
                },
            );
            let who = WorkerId(7);
            let adopted = Some(WorkerId(0));
            read(&mut curves, 0, Record::Settled { who, view: 1, round: 4, adopted });

            read(&mut curves, 1, applied(0, 400, 410, 3.0));
            read(&mut curves, 1, applied(7, 410, 420, 3.0));

            let expected = if together { 410 } else { 420 };
            assert_eq!(curves.samples(), expected, "together: {together}");
            let epochs: Vec<f64> = curves.loss().iter().map(|point| point.epochs).collect();
            assert!(epochs[0] > 2.0 && epochs[0] < 2.2, "{epochs:?}");
        }
    }

    /// The journal of a run that was killed after its checkpoint of 40 samples, and of the run that resumed it.
    #[test]
    fn a_resumed_run_keeps_the_curves_of_its_checkpoint() {
        for together in [true, false] {
            let mut curves = curves(together);
            for (second, from) in [(1, 0), (2, 20), (3, 40)] {
                read(&mut curves, second, applied(0, from, from + 20, 10.0 - second as f64));
            }
            let mut past = Past::new(10);
            for (second, samples, loss) in [(1, 20, 9.0), (2, 40, 8.0)] {
                let (at, weight, rate) = (Duration::from_secs(second), 20.0, 0.5);
                past.add_loss(PastLoss { at, samples, loss, weight, rate });
            }
            let (at, samples, loss) = (Duration::from_secs(2), 40, 1.0);
            past.add_score(PastScore { at, samples, loss, accuracy: 0.25 });
            past.samples_computed = 40;

            read(
                &mut curves,
                3,
                Record::Resumed {
                    round: 2,
                    version: 2,
                    spans: Spans::one(0, 40),
                    loss_first: None,
                    loss_last: None,
                    samples_total: Some(1000),
                    past: Some(Box::new(past)),
                },
            );
            read(&mut curves, 4, applied(0, 40, 60, 6.0));

            assert_eq!(curves.samples(), 60, "together: {together}");
            assert_eq!(values(curves.loss()), [9.0, 8.0, 6.0]);
            assert_eq!(values(curves.accuracy()), [0.25]);
            assert_eq!(curves.rate().len(), 3);
        }
    }

    #[test]
    fn a_record_of_a_thinned_journal_stands_for_the_omitted_ones() {
        let mut curves = curves(false);
        read(&mut curves, 1, applied(0, 0, 10, 3.0));

        read(&mut curves, 2, Record::Thinned { keeping_one_in: 4 });
        read(&mut curves, 3, applied(0, 40, 50, 2.0));

        assert_eq!(curves.samples(), 50);
        assert_eq!(values(curves.loss()), [3.0, 2.0]);
    }
}
