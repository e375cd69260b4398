//! Data sets by name.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use paceline_data::load::NAMES;
use paceline_learn::{Dataset, Dice, Extent, Noise, Table, Vocabulary, blobs, digits, patterns};

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
            None => Err(unknown_name(name)),
        },
    }
}

/// Whether there is a data set of that name, without reading it.
pub fn check_name(name: &str) -> Result<(), TaskError> {
    let is_text = name.starts_with("text:") || name.ends_with(".txt");
    let is_known = is_text || known().any(|known| known == name);
    if is_known { Ok(()) } else { Err(unknown_name(name)) }
}

fn known() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name).chain(NAMES)
}

fn unknown_name(name: &str) -> TaskError {
    unknown("data set", name, known(), "`paceline data list` lists them all").into()
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

/// No more samples than this are held out: more would only make evaluations slower.
const VALIDATION_MAX: u64 = 1_000;

/// Training and validation data.
type Parts = (Arc<dyn Dataset>, Option<Arc<dyn Dataset>>);

/// Holds out `part` of the training data for validation, at most `VALIDATION_MAX` and at least one sample, drawn by the seed.
pub fn hold_out(train: Arc<dyn Dataset>, part: f64, seed: u64) -> Result<Parts, TaskError> {
    check_part(part)?;
    let wanted = (train.len() as f64 * part).round() as u64;
    // A single sample is trained on.
    let count = wanted.clamp(1, VALIDATION_MAX).min(train.len().saturating_sub(1));
    if part == 0.0 || count == 0 {
        return Ok((train, None));
    }
    let mut dice = Dice::keyed(&[seed, HELD_OUT]);
    let mut chosen = BTreeSet::new();
    while (chosen.len() as u64) < count {
        chosen.insert(dice.below(train.len()));
    }
    let indices: Arc<[u64]> = chosen.into_iter().collect();
    let rest = Portion { whole: train.clone(), indices: indices.clone(), is_rest: true };
    let held_out = Portion { whole: train, indices, is_rest: false };
    Ok((Arc::new(rest), Some(Arc::new(held_out))))
}

/// Whether this part of the training data can be held out.
pub fn check_part(part: f64) -> Result<(), TaskError> {
    if (0.0..1.0).contains(&part) { Ok(()) } else { Err(TaskError::Validation { part }) }
}

const HELD_OUT: u64 = 0x6865_6c64;

/// The samples of a data set that are held out, or all others.
struct Portion {
    whole: Arc<dyn Dataset>,
    /// Those that are held out, ascending.
    indices: Arc<[u64]>,
    is_rest: bool,
}

impl Portion {
    /// The index in the whole data set.
    fn index(&self, index: u64) -> u64 {
        if !self.is_rest {
            return self.indices[index as usize];
        }
        // As many are skipped as lie before it: the k-th of them if it has at most `index` others before it.
        let mut skipped = (0, self.indices.len());
        while skipped.0 < skipped.1 {
            let middle = skipped.0.midpoint(skipped.1);
            match self.indices[middle] - middle as u64 <= index {
                true => skipped.0 = middle + 1,
                false => skipped.1 = middle,
            }
        }
        index + skipped.0 as u64
    }
}

impl Dataset for Portion {
    fn len(&self) -> u64 {
        let held_out = self.indices.len() as u64;
        if self.is_rest { self.whole.len() - held_out } else { held_out }
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
        self.whole.read(self.index(index), epoch, into)
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

    /// Every sample is in exactly one of the two parts, and another seed holds out others.
    #[test]
    fn a_tenth_is_held_out_and_not_trained_on() {
        let rows = |set: &dyn Dataset| -> Vec<Vec<u32>> {
            let mut row = vec![0.0; set.features()];
            let mut read = |index| {
                let label = set.read(index, 0, &mut row);
                row.iter().map(|x| x.to_bits()).chain([label]).collect()
            };
            (0..set.len()).map(&mut read).collect()
        };
        let all = of(&Job::default()).unwrap().train;

        let (train, held_out) = hold_out(all.clone(), 0.1, 1).unwrap();

        let (train, held_out) = (rows(train.as_ref()), rows(held_out.unwrap().as_ref()));
        assert_eq!((train.len(), held_out.len()), (1293, 144));
        let mut both: Vec<_> = train.into_iter().chain(held_out.clone()).collect();
        let mut whole = rows(all.as_ref());
        both.sort();
        whole.sort();
        assert!(both == whole);
        let (_, others) = hold_out(all, 0.1, 2).unwrap();
        assert!(rows(others.unwrap().as_ref()) != held_out);
    }

    #[test]
    fn of_few_samples_one_is_held_out_and_of_many_a_thousand() {
        let noise = |len| -> Arc<dyn Dataset> { Arc::new(Noise { len }) };
        for (len, part, expected) in [
            (1, 0.1, None),
            (2, 0.1, Some(1)),
            (40, 0.1, Some(4)),
            (60_000, 0.1, Some(1_000)),
            (60_000, 0.0, None),
        ] {
            let (train, held_out) = hold_out(noise(len), part, 1).unwrap();

            assert_eq!(held_out.map(|part| part.len()), expected, "{part} of {len}");
            assert_eq!(train.len(), len - expected.unwrap_or(0), "{part} of {len}");
        }
        for part in [-0.1, 1.0, f64::NAN] {
            assert!(matches!(hold_out(noise(40), part, 1), Err(TaskError::Validation { .. })));
        }
    }
}
