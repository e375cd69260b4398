//! Data sets by name.

use std::path::Path;
use std::sync::Arc;

use paceline_data::load::NAMES;
use paceline_learn::{Dataset, Extent, Noise, Table, Vocabulary, blobs, digits, patterns};

use crate::config::Job;
use crate::error::TaskError;
use crate::suggest::unknown;

pub use paceline_data::Sets;

/// The names and summaries of the built-in and synthetic data sets; the others come from `paceline_data`.
pub const BUILT_IN: [(&str, &str); 5] = [
    ("digits", "handwritten digits, 8 x 8 gray, 10 classes, 1,437 + 360"),
    ("patterns", "synthetic stripes, 16 x 16 gray, 10 classes by direction, 2,000 + 500"),
    ("text", "Alice's Adventures in Wonderland, windows of 65 characters, 4,173 + 231"),
    ("blobs", "synthetic points, 16 features, 4 classes, 2,000 + 500"),
    ("noise", "no data, for the model quadratic"),
];

/// The data that a job names, cut to `job.samples`.
pub fn of(job: &Job) -> Result<Sets, TaskError> {
    let sets = named(&job.data, job.seed, job.data_dir.as_deref())?;
    let all = sets.train.len();
    match job.samples {
        None => Ok(sets),
        Some(samples) if (1..=all).contains(&samples) => {
            Ok(Sets { train: Arc::new(First { whole: sets.train, len: samples }), test: sets.test })
        }
        Some(samples) => Err(TaskError::Samples { samples, data: job.data.clone(), all }),
    }
}

/// The data set of that name; its files are in `root`, or in the default folder.
pub fn named(name: &str, seed: u64, root: Option<&Path>) -> Result<Sets, TaskError> {
    match name {
        "digits" => Ok(sets(digits())),
        "patterns" => {
            let train = patterns(2_000, patterns::EXTENT, 10, seed);
            // Different stripes, in the same directions.
            let test = patterns(500, patterns::EXTENT, 10, !seed);
            Ok(sets((train, test)))
        }
        "blobs" => {
            // The same centers for both sets, different points around them.
            let all = blobs(2_500, 16, 4, seed, 0.5);
            Ok(sets(split(all, 2_000)))
        }
        "noise" => Ok(sets((Noise { len: 2_000 }, Noise { len: 1 }))),
        name => match paceline_data::load(name, root, seed) {
            Some(sets) => Ok(sets?),
            None => {
                let known = BUILT_IN.iter().map(|(name, _)| *name).chain(NAMES);
                let advice = "`paceline data list` lists them all";
                Err(unknown("data set", name, known, advice).into())
            }
        },
    }
}

fn sets<D: Dataset + 'static>((train, test): (D, D)) -> Sets {
    Sets { train: Arc::new(train), test: Arc::new(test) }
}

fn split(all: Table, train: usize) -> (Table, Table) {
    let features = all.features();
    let part = |from: usize, to: usize| Table {
        extent: all.extent,
        classes: all.classes,
        inputs: all.inputs[from * features..to * features].to_vec(),
        labels: all.labels[from..to].to_vec(),
    };
    (part(0, train), part(train, all.labels.len()))
}

/// The first samples of a data set.
struct First {
    whole: Arc<dyn Dataset>,
    len: u64,
}

impl Dataset for First {
    fn len(&self) -> u64 {
        self.len
    }

    fn features(&self) -> usize {
        self.whole.features()
    }

    fn classes(&self) -> usize {
        self.whole.classes()
    }

    fn extent(&self) -> Extent {
        self.whole.extent()
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.whole.vocabulary()
    }

    fn read(&self, index: u64, epoch: u64, into: &mut [f32]) -> u32 {
        self.whole.read(index, epoch, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_sets_need_no_files() {
        for (name, _) in BUILT_IN {
            let sets = named(name, 1, Some(Path::new("/nonexistent"))).expect("it is built in");
            assert_eq!(sets.train.features(), sets.test.features(), "{name}");
            assert_eq!(sets.train.extent().len(), sets.train.features(), "{name}");
        }
    }

    #[test]
    fn a_job_may_train_on_the_first_samples_only() {
        let job = Job { samples: Some(100), ..Job::default() };
        let (some, all) = (of(&job).unwrap(), of(&Job::default()).unwrap());
        let [mut one, mut other] = [[0.0; 64]; 2];

        assert_eq!((some.train.len(), some.test.len()), (100, all.test.len()));
        assert_eq!(some.train.extent(), all.train.extent());
        assert_eq!(some.train.read(99, 0, &mut one), all.train.read(99, 0, &mut other));
        assert_eq!(one, other);
    }

    #[test]
    fn zero_samples_and_more_than_all_are_refused() {
        for samples in [0, 1_438] {
            let refused = of(&Job { samples: Some(samples), ..Job::default() }).err();

            let is_it = matches!(refused, Some(TaskError::Samples { all: 1437, .. }));
            assert!(is_it, "{refused:?}");
        }
    }
}
