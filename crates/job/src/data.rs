//! Data sets by name.

use std::sync::Arc;

use paceline_learn::{Dataset, Noise, Table, blobs, digits};

use crate::recipes::unknown;

pub const DATA: [&str; 3] = ["digits", "blobs", "noise"];

/// What is learned from, and what it is judged by.
pub type Sets = (Arc<dyn Dataset> /* train */, Arc<dyn Dataset> /* test */);

pub fn named(name: &str, seed: u64) -> Result<Sets, String> {
    match name {
        "digits" => {
            let (train, test) = digits();
            Ok((Arc::new(train), Arc::new(test)))
        }
        "blobs" => {
            // The same centers for both sets, other points around them.
            let all = blobs(2_500, 16, 4, seed, 0.5);
            let (train, test) = split(all, 2_000);
            Ok((Arc::new(train), Arc::new(test)))
        }
        "noise" => Ok((Arc::new(Noise { len: 2_000 }), Arc::new(Noise { len: 1 }))),
        name => {
            let list = format!("there are {}", DATA.join(", "));
            Err(unknown("data set", name, DATA.into_iter(), &list))
        }
    }
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
