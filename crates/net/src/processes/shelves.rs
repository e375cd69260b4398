//! What a worker process has published, and who waits for it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use paceline_runtime::WorkerId;
use paceline_runtime::wire::{Extent, Published, Shelf};

/// Shared by the worker, which publishes, and the I/O thread, which answers peers while the worker computes.
#[derive(Default)]
pub struct OwnShelves(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    values: BTreeMap<Shelf, Published>,
    /// Readers that wait until something is published.
    waiting: Vec<Waiting>,
}

/// A reader that waits. `request` is the number that its answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub by: WorkerId,
    pub request: u64,
    pub shelf: Shelf,
    pub extent: Extent,
}

impl OwnShelves {
    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.0.lock().expect("no holder panics")
    }

    /// Publishes a value; returns whether somebody waits for it.
    pub fn publish(&self, shelf: Shelf, value: Published) -> bool {
        let mut inside = self.inside();
        inside.values.insert(shelf, value);
        inside.waiting.iter().any(|waiting| waiting.shelf == shelf)
    }

    pub fn read(&self, shelf: Shelf, extent: Extent) -> Option<Published> {
        self.inside().values.get(&shelf).map(|value| value.extract(extent))
    }

    /// Reads, or waits if nothing is published: then the value comes out of [`answers`](Self::answers) later.
    pub fn read_or_wait(&self, waiting: Waiting) -> Option<Published> {
        let mut inside = self.inside();
        let value = inside.values.get(&waiting.shelf).map(|value| value.extract(waiting.extent));
        if value.is_none() {
            inside.waiting.push(waiting);
        }
        value
    }

    /// Readers that can be answered now.
    pub fn answers(&self) -> Vec<(Waiting, Published)> {
        let Inside { values, waiting } = &mut *self.inside();
        let mut answers = vec![];
        waiting.retain(|it| match values.get(&it.shelf) {
            Some(value) => {
                answers.push((*it, value.extract(it.extent)));
                false
            }
            None => true,
        });
        answers
    }

    /// A reader is gone.
    pub fn forget(&self, who: WorkerId) {
        self.inside().waiting.retain(|waiting| waiting.by != who);
    }
}
