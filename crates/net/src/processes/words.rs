//! What every member adds to an exchange, as words of a fixed order: for notices in shared memory, and for heads of frames, where the names
//! of all fields would take longer to read than a short vector to add.

use std::time::Duration;

use paceline_runtime::wire::{Extra, Tail};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub const TAIL_WORDS: usize = 11;

pub fn of_tail(tail: &Tail) -> [u64; TAIL_WORDS] {
    [
        tail.plan,
        tail.samples,
        tail.loss_sum.to_bits(),
        u64::from(tail.weight.is_some()),
        tail.weight.unwrap_or(0.0).to_bits(),
        tail.version,
        u64::try_from(tail.compute.as_nanos()).unwrap_or(u64::MAX),
        tail.extra.number().to_bits(),
        u64::from(tail.stop),
        tail.save,
        tail.digest,
    ]
}

pub fn to_tail(words: [u64; TAIL_WORDS]) -> Tail {
    let [plan, samples, loss_sum, has_weight, weight, version, compute, extra, stop, save, digest] =
        words;
    Tail {
        plan,
        samples,
        loss_sum: f64::from_bits(loss_sum),
        weight: (has_weight == 1).then(|| f64::from_bits(weight)),
        version,
        compute: Duration::from_nanos(compute),
        extra: Extra::from(f64::from_bits(extra)),
        stop: stop == 1,
        save,
        digest,
    }
}

pub fn serialize<S: Serializer>(tail: &Tail, to: S) -> Result<S::Ok, S::Error> {
    of_tail(tail).serialize(to)
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Tail, D::Error> {
    <[u64; TAIL_WORDS]>::deserialize(from).map(to_tail)
}
