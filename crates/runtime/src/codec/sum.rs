//! The arithmetic of a sum over members, the same in every cluster.

use std::sync::Arc;

use paceline_learn::{Dice, Vector, vector::add};

use super::chunks::{chunk, whole_buckets};
use super::{Encoded, Payload, half, quantize};

/// A sum over members that is computed while their parts arrive.
///
/// Parts are added in rank order, whatever order they arrive in, so the bits do not depend on which one was
/// first. A part is added, and dropped, as soon as all parts of lower rank are: a simulated cluster of a
/// thousand equal workers holds two gradients, not a thousand. Half and quantized sums are then encoded again
/// in one chunk per member, without the buffers behind them. A sum over one part adds no rounding.
#[derive(Debug)]
pub struct Adding {
    /// By rank: parts that wait for one of lower rank.
    waiting: Vec<Option<Arc<Payload>>>,
    /// How many ranks have been added.
    passed: usize,
    /// How many of them had something to add.
    parts: usize,
    /// The first part, until a second one comes.
    first: Option<Arc<Payload>>,
    total: Option<(Form, Vector)>,
}

/// How the parts of a sum are encoded, all alike, and how many values of each are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Form {
    kind: Kind,
    learned: usize,
    buffers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Dense,
    Half,
    Quantized { bits: u8, bucket: u32 },
    Sparse,
}

const ALIKE: &str = "all parts of a sum have the same codec and length";

/// Numbers added at a time; the block stays in the L1 cache while several parts are added to it.
const BLOCK: usize = 4096;

impl Adding {
    pub fn new(members: usize) -> Adding {
        let waiting = (0..members).map(|_| None).collect();
        Adding { waiting, passed: 0, parts: 0, first: None, total: None }
    }

    /// Adds a member's part; an empty one adds nothing.
    pub fn enter(&mut self, rank: usize, part: Arc<Payload>) {
        assert!(rank >= self.passed && self.waiting[rank].is_none(), "a member enters a sum once");
        self.waiting[rank] = Some(part);
        let ready = self.waiting[self.passed..].iter_mut().map_while(Option::take);
        let mut ready: Vec<Arc<Payload>> = ready.collect();
        self.passed += ready.len();
        ready.retain(|part| !part.is_empty());
        self.parts += ready.len();
        let mut ready = ready.into_iter();
        if self.total.is_none() {
            let Some(first) = self.first.take().or_else(|| ready.next()) else { return };
            let Some(second) = ready.next() else {
                self.first = Some(first);
                return;
            };
            let form = Form::of(&first);
            assert_eq!(Form::of(&second), form, "{ALIKE}");
            self.total = Some((form, add_two(first, second)));
        }
        let Some((form, total)) = &mut self.total else { return };
        assert!(ready.as_slice().iter().all(|part| Form::of(part) == *form), "{ALIKE}");
        add_all(total, ready.as_slice());
    }

    /// The sum, once all members have entered; empty if no member had anything to add.
    pub fn finish(self, dice: &mut Dice) -> Vector {
        assert_eq!(self.passed, self.waiting.len(), "a sum ends when all have entered");
        let (parts, n) = (self.parts, self.waiting.len());
        let Some((form, mut total)) = self.total() else { return Vector::new() };
        // Each chunk has its own dice, so that a member can encode it without the others. There are as many as members, not as
        // parts: a member knows the chunks before it knows who has something to add.
        let key = dice.draw();
        if parts > 1 {
            for j in 0..n {
                let range = chunk(form.learned, n, j);
                round_again(form.kind, &mut total[range], &mut Dice::keyed(&[key, j as u64]));
            }
        }
        total
    }

    /// The sum of chunk `j`, once the chunks of all members have entered: what [`finish`](Self::finish) gives for this chunk of
    /// vectors with `params` learned numbers, encoded. `None` if no member had anything to add.
    pub fn finish_chunk(self, dice: &mut Dice, params: usize, j: usize) -> Option<Payload> {
        assert_eq!(self.passed, self.waiting.len(), "a sum ends when all have entered");
        let (parts, chunk) = (self.parts, (params, self.waiting.len(), j));
        let (form, total) = self.total()?;
        Some(encode_sum(form.kind, total, parts, chunk, dice.draw()))
    }

    /// What was added, or the only part.
    fn total(self) -> Option<(Form, Vector)> {
        let only = |part: Arc<Payload>| (Form::of(&part), Arc::unwrap_or_clone(part).into_vector());
        self.total.or_else(|| self.first.map(only))
    }
}

fn add_all(total: &mut Vector, parts: &[Arc<Payload>]) {
    for (i, into) in total.chunks_mut(BLOCK).enumerate() {
        parts.iter().for_each(|part| part.add_chunk(i * BLOCK, into));
    }
}

/// The sum of two parts, whichever comes first. It takes the memory of one whose member does not keep it, to enter again should another member
/// be lost.
fn add_two(first: Arc<Payload>, second: Arc<Payload>) -> Vector {
    match &first.learned {
        Encoded::Dense(learned) if Arc::strong_count(&first) > 1 => {
            let mut total = Arc::unwrap_or_clone(second).into_vector();
            let (into, buffers) = total.split_at_mut(learned.len());
            add(into, learned);
            add(buffers, &first.buffers);
            total
        }
        _ => {
            let mut total = Arc::unwrap_or_clone(first).into_vector();
            add_all(&mut total, &[second]);
            total
        }
    }
}

/// into <- the sum of dense parts of its length, in the order in which they stand. The bits are those of [`Adding`], and the parts are
/// read once.
pub fn add_dense(into: &mut [f32], parts: &[&[f32]]) {
    let Some((first, others)) = parts.split_first() else { return into.fill(0.0) };
    for (i, into) in into.chunks_mut(BLOCK).enumerate() {
        let here = i * BLOCK..i * BLOCK + into.len();
        match others {
            // One pass instead of several where there are few parts.
            [second] => {
                let pairs = first[here.clone()].iter().zip(&second[here]);
                into.iter_mut().zip(pairs).for_each(|(into, (x, y))| *into = x + y);
            }
            [second, third, fourth] => {
                let x = first[here.clone()].iter().zip(&second[here.clone()]);
                let y = third[here.clone()].iter().zip(&fourth[here]);
                let all = x.zip(y);
                into.iter_mut().zip(all).for_each(|(into, ((x, y), (z, w)))| *into = x + y + z + w);
            }
            _ => {
                into.copy_from_slice(&first[here.clone()]);
                others.iter().for_each(|part| add(into, &part[here.clone()]));
            }
        }
    }
}

/// The random numbers of a lossy sum. They are keyed by the exchange: not by the view, since the exchange may be tried again in
/// another one, and not by the member that happens to compute it.
pub fn dice_of(seed: u64, exchange: u64) -> Dice {
    Dice::keyed(&[seed, exchange, u64::from(b'x')])
}

impl Form {
    fn of(payload: &Payload) -> Form {
        let kind = match payload.learned {
            Encoded::Dense(_) => Kind::Dense,
            Encoded::Half(_) => Kind::Half,
            Encoded::Quantized { bits, bucket, .. } => Kind::Quantized { bits, bucket },
            Encoded::Sparse { .. } => Kind::Sparse,
        };
        Form { kind, learned: payload.learned.len(), buffers: payload.buffers.len() }
    }
}

/// Rounds a summed chunk as encoding it again would.
fn round_again(kind: Kind, values: &mut [f32], dice: &mut Dice) {
    match kind {
        Kind::Dense | Kind::Sparse => {}
        Kind::Half => values.iter_mut().for_each(|x| *x = half::widen(half::narrow(*x))),
        Kind::Quantized { bits, bucket } => {
            let bucket = bucket as usize;
            let (norms, levels) = quantize::quantize(values, bits, bucket, dice);
            values.fill(-0.0);
            quantize::add_levels(bits, bucket, &norms, &levels, 0, values);
        }
    }
}

/// The sum of chunk j of n as its owner sends it: encoded as its parts were, if it has several. `total` is over what
/// [`Payload::chunk`] has of each part.
fn encode_sum(
    kind: Kind,
    mut total: Vector,
    parts: usize,
    (params, n, j): (usize, usize, usize),
    key: u64,
) -> Payload {
    let own = chunk(params, n, j);
    let reach = match kind {
        Kind::Quantized { bucket, .. } => whole_buckets(own.clone(), bucket as usize, params),
        _ => own.clone(),
    };
    let buffers = total.split_off(reach.len());
    let inside = own.start - reach.start..own.end - reach.start;
    let values = &total[inside];
    let learned = match kind {
        Kind::Half if parts > 1 => Encoded::Half(values.iter().map(|x| half::narrow(*x)).collect()),
        Kind::Quantized { bits, bucket } if parts > 1 => {
            let mut dice = Dice::keyed(&[key, j as u64]);
            let (norms, levels) = quantize::quantize(values, bits, bucket as usize, &mut dice);
            Encoded::Quantized { bits, bucket, length: values.len() as u32, norms, levels }
        }
        _ => Encoded::Dense(values.into()),
    };
    Payload { learned, buffers }
}
