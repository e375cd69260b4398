//! Labeled rows of numbers, and the batches read from them.

use serde::{Deserialize, Serialize};

use crate::dice::mix;
use crate::error::DataError;
use crate::vocabulary::Vocabulary;

/// Labeled rows of numbers. Reading is pure: the same index and epoch always return the same row.
pub trait Dataset: Send + Sync {
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn features(&self) -> usize;

    fn classes(&self) -> usize;

    /// The shape of a row: that of an image, or else a plain row.
    fn extent(&self) -> Extent {
        Extent::row(self.features())
    }

    /// The vocabulary, if rows are texts: each feature is then a token, and the last one is only a target.
    fn vocabulary(&self) -> Option<&Vocabulary> {
        None
    }

    /// How many samples of the job were learned before it began, by a run that saved them in a file of the user's own: the job has so
    /// many fewer, and whoever reads the data knows which ones.
    fn learned_before(&self) -> u64 {
        0
    }

    /// Writes one row to `into` and returns its label. Only augmentation depends on the epoch.
    fn read(&self, index: u64, epoch: u64, into: &mut [f32]) -> u32;
}

/// The shape of a row: an image's pixels row by row, its channels last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

impl Extent {
    /// A plain row of numbers.
    pub fn row(features: usize) -> Extent {
        Extent { height: 1, width: 1, channels: features }
    }

    pub fn len(&self) -> usize {
        self.height * self.width * self.channels
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The samples of one gradient, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub features: usize,
    pub inputs: Vec<f32>,
    pub labels: Vec<u32>,
    /// A key of each (epoch, sample), for models that use random numbers.
    pub keys: Vec<u64>,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Replaces the contents by the given samples, as (epoch, index), and reuses the memory.
    pub fn fill(
        &mut self,
        dataset: &dyn Dataset,
        samples: impl Iterator<Item = (u64 /* epoch */, u64 /* index */)>,
    ) {
        self.features = dataset.features();
        self.inputs.clear();
        self.labels.clear();
        self.keys.clear();
        for (epoch, index) in samples {
            let start = self.inputs.len();
            self.inputs.resize(start + self.features, 0.0);
            self.labels.push(dataset.read(index, epoch, &mut self.inputs[start..]));
            self.keys.push(mix(mix(epoch) ^ mix(!index)));
        }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// A data set in memory, built in or user-defined.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub extent: Extent,
    pub classes: usize,
    pub inputs: Vec<f32>,
    pub labels: Vec<u32>,
}

impl Table {
    /// A table of plain rows; an error if the numbers do not fit the shape, or a label or an input is invalid.
    pub fn new(
        features: usize,
        classes: usize,
        inputs: Vec<f32>,
        labels: Vec<u32>,
    ) -> Result<Table, DataError> {
        if labels.is_empty() {
            return Err(DataError::NoRows);
        }
        let rows = labels.len();
        if rows.checked_mul(features) != Some(inputs.len()) {
            return Err(DataError::Inputs { rows, features, inputs: inputs.len() });
        }
        if let Some(row) = labels.iter().position(|label| *label as usize >= classes) {
            return Err(DataError::RowLabel { row, label: labels[row], classes });
        }
        if let Some(at) = inputs.iter().position(|input| !input.is_finite()) {
            let (row, feature) = (at / features, at % features);
            return Err(DataError::NotFinite { row, feature, value: inputs[at] });
        }
        Ok(Table { extent: Extent::row(features), classes, inputs, labels })
    }
}

impl Dataset for Table {
    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn features(&self) -> usize {
        self.extent.len()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn extent(&self) -> Extent {
        self.extent
    }

    fn read(&self, index: u64, _epoch: u64, into: &mut [f32]) -> u32 {
        let (index, features) = (index as usize, into.len());
        into.copy_from_slice(&self.inputs[index * features..][..features]);
        self.labels[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(2, 3, vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], vec![0, 2, 1]).unwrap()
    }

    #[test]
    fn a_batch_holds_the_rows_in_the_requested_order() {
        let mut batch = Batch::new();

        batch.fill(&table(), [(0, 2), (0, 0)].into_iter());

        assert_eq!(batch.inputs, [4.0, 5.0, 0.0, 1.0]);
        assert_eq!(batch.labels, [1, 0]);
        assert_eq!((batch.len(), batch.features), (2, 2));
    }

    #[test]
    fn a_refilled_batch_holds_only_the_new_rows_and_reuses_its_memory() {
        let mut batch = Batch::new();
        batch.fill(&table(), (0..3).map(|index| (0, index)));
        let memory = batch.inputs.as_ptr();

        batch.fill(&table(), [(4, 1)].into_iter());

        assert_eq!((batch.len(), batch.inputs.as_slice()), (1, &[2.0, 3.0][..]));
        assert_eq!(batch.inputs.as_ptr(), memory);
    }

    #[test]
    fn keys_are_distinct_for_every_epoch_and_sample() {
        let mut batch = Batch::new();
        let noise = crate::Noise { len: 100 };

        batch.fill(&noise, (0..100).flat_map(|epoch| (0..100).map(move |index| (epoch, index))));

        let distinct: std::collections::BTreeSet<_> = batch.keys.iter().collect();
        assert_eq!(distinct.len(), 10_000);
    }

    #[test]
    fn an_invalid_table_is_refused_with_the_reason() {
        let cases = [
            (Table::new(2, 2, vec![0.0; 3], vec![0, 1]), "need 4 numbers, not 3"),
            (Table::new(1, 2, vec![0.0; 2], vec![0, 2]), "row 1 has label 2"),
            (Table::new(1, 2, vec![0.0, f32::NAN], vec![0, 1]), "row 1, feature 0 is NaN"),
            (Table::new(1, 2, vec![], vec![]), "at least one row"),
        ];

        for (table, reason) in cases {
            let error = table.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
