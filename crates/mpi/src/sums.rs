//! Exchanges between ranks, one after another, as MPI's nonblocking collectives.
//!
//! First every rank tells all others its tail and how long its vector is (`MPI_Iallgather` of short blocks). Then a long dense
//! vector goes in chunks, chunk j to rank j (`MPI_Ialltoallv`), which adds them in rank order and gives the sum to all
//! (`MPI_Iallgatherv`): the bits are those of every other cluster. It goes piece by piece, so that what was received is added while it
//! is in the processor's cache. With [`Sums::Mpi`] MPI adds (`MPI_Iallreduce`), in an order
//! that it chooses. Short and encoded vectors go to all ranks as they are, and each adds in rank order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use paceline_learn::Vector;
use paceline_learn::kernels::Pool;
use paceline_learn::vector::add;
use paceline_net::processes::Shape;
use paceline_net::processes::frame::{Decoder, Limits, bytes_of, encode};
use paceline_net::processes::message::{EntryHead, ExchangeName, Form, payload_slices};
use paceline_runtime::codec::{Codec, Payload, chunk};
use paceline_runtime::exchange::ExchangeResult;
use paceline_runtime::wire::{Entry, Tail};
use paceline_runtime::{Meeting, Sum, Ticket, View};
use serde::{Deserialize, Serialize};

use crate::error::MpiError;
use crate::raw::{Mine, Mpi, Pending, numbers};

/// Who adds long vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// The ranks, each a chunk, in rank order.
    #[default]
    InOrder,
    /// MPI, for networks that add on their way.
    Mpi,
}

/// An exchange that the worker has entered.
pub struct Entered {
    pub ticket: Ticket,
    pub view: Arc<View>,
    pub number: u64,
    pub entry: Entry,
}

/// What every rank tells all others before its numbers.
#[derive(Serialize, Deserialize)]
struct Head {
    name: ExchangeName,
    entry: EntryHead,
    /// The length of its vector; 0 if it adds nothing.
    numbers: u64,
    /// How many words it has where vectors are not added in chunks.
    words: u64,
}

/// A head is at most this long, with its length in front: the tail is a handful of numbers.
const HEAD: usize = 512;
/// Shorter vectors go to all ranks as a whole, behind the heads: one step instead of three.
const CHUNKED_FROM: usize = 16 << 10;
/// Numbers of each chunk that are exchanged at a time, at least; and how often at most. While a rank computes, MPI is tested now and then
/// only, and every piece waits for two tests.
const PIECE: usize = 128 << 10;
const PIECES_MAX: usize = 4;
/// Numbers added at a time; the block stays in the L1 cache while several parts are added to it.
const ADDED: usize = 4096;
/// Results whose memory may be used again when nobody holds them any more: fresh memory costs as much as the sum.
const REUSED: usize = 2;

pub struct Exchanges {
    shape: Shape,
    sums: Sums,
    /// The collectives of one exchange at a time are under way, so that all ranks start them in the same order.
    queue: VecDeque<Entered>,
    /// The bytes of a head with the words behind it, the same on all ranks.
    block: usize,
    current: Option<(Entered, Stage)>,
    /// Received chunks, and behind them this rank's chunk of the sum.
    scratch: Vector,
    results: VecDeque<Arc<Sum>>,
}

enum Stage {
    Heads { under_way: Pending<(Vec<u8>, Vec<u8>)>, words: Vec<u32> },
    Chunks { under_way: Pending<(Mine, Vector)>, tails: Vec<Tail>, layout: Layout, result: Vector },
    Spread { under_way: Pending<(Vector, Vector)>, tails: Vec<Tail>, layout: Layout },
    Reduce { under_way: Pending<(Mine, Vector)>, tails: Vec<Tail> },
    Words { under_way: Pending<(Vec<u32>, Vec<u32>)>, heads: Vec<Head>, ranges: Vec<Range<usize>> },
}

/// Where the parts of one piece of a sum lie.
struct Layout {
    /// By rank: the length of its vector, 0 if it adds nothing.
    lengths: Vec<usize>,
    /// The length of the whole vector.
    length: usize,
    /// Which piece of all chunks it is.
    piece: usize,
    /// Ranks that add something, in order.
    contributors: Vec<usize>,
    /// By rank: where its part of this rank's chunk is received; empty if it sends none.
    received: Vec<Range<usize>>,
    /// Where this rank's chunk is added up, behind all that is received.
    added: Range<usize>,
}

impl Layout {
    fn new(lengths: Vec<usize>, piece: usize, rank: usize) -> Layout {
        let length = lengths.iter().copied().max().unwrap_or(0);
        let contributors = (0..lengths.len()).filter(|j| lengths[*j] > 0).collect();
        let mine = piece_of(length, lengths.len(), rank, piece).len();
        let mut end = 0;
        let received = lengths.iter().enumerate().map(|(j, length)| {
            let start = end;
            end += if j != rank && *length > 0 { mine } else { 0 };
            start..end
        });
        let received = received.collect();
        Layout { length, piece, contributors, received, added: end..end + mine, lengths }
    }

    /// The layout of the next piece, if there is one.
    fn next(self, rank: usize) -> Option<Layout> {
        let (next, size) = (self.piece + 1, self.lengths.len());
        // All ranks take part in every piece, also those whose chunk is over.
        let is_over = (0..size).all(|j| piece_of(self.length, size, j, next).is_empty());
        (!is_over).then(|| Layout::new(self.lengths, next, rank))
    }

    /// By rank: the piece of its chunk that it adds up, of a vector of this length.
    fn pieces(&self, length: usize) -> Vec<Range<usize>> {
        let size = self.lengths.len();
        (0..size).map(|j| piece_of(length, size, j, self.piece)).collect()
    }

    /// Adds the parts of this rank's chunk in rank order.
    fn add(&self, mine: Option<&[f32]>, scratch: &mut [f32], rank: usize) {
        let (received, added) = scratch.split_at_mut(self.added.start);
        let part = |j: usize| match mine {
            Some(mine) if j == rank => {
                &mine[piece_of(self.length, self.lengths.len(), rank, self.piece)]
            }
            _ => &received[self.received[j].clone()],
        };
        for (i, into) in added[..self.added.len()].chunks_mut(ADDED).enumerate() {
            let here = i * ADDED..i * ADDED + into.len();
            let mut parts = self.contributors.iter().map(|j| &part(*j)[here.clone()]);
            match (parts.next(), parts.next()) {
                (Some(first), Some(second)) => {
                    let pairs = first.iter().zip(second);
                    into.iter_mut().zip(pairs).for_each(|(x, (a, b))| *x = a + b);
                }
                (Some(first), None) => into.copy_from_slice(first),
                (None, _) => {}
            }
            parts.for_each(|part| add(into, part));
        }
    }
}

impl Exchanges {
    pub fn new(shape: Shape, sums: Sums) -> Exchanges {
        let bytes = 4 * shape.size();
        // Numbers with their indices take twice as much; a few bytes say what they are.
        let words = if bytes <= CHUNKED_FROM { 2 * bytes + HEAD } else { 0 };
        let (queue, results) = (VecDeque::new(), VecDeque::new());
        let (block, scratch) = (HEAD + words, Vector::new());
        Exchanges { shape, sums, queue, block, current: None, scratch, results }
    }

    pub fn enter(&mut self, entered: Entered) {
        self.queue.push_back(entered);
    }

    /// Whether nothing is under way.
    pub fn are_idle(&self) -> bool {
        self.current.is_none() && self.queue.is_empty()
    }

    /// Whether all ranks have entered, and numbers are on their way.
    pub fn are_moving(&self) -> bool {
        self.current.as_ref().is_some_and(|(_, stage)| !matches!(stage, Stage::Heads { .. }))
    }

    /// Goes on if MPI has; returns whether it did, and the result if the exchange is over.
    pub fn advance(
        &mut self,
        mpi: &Mpi,
    ) -> Result<(bool, Option<(Ticket, ExchangeResult)>), MpiError> {
        if self.current.is_none() {
            let Some(entered) = self.queue.pop_front() else { return Ok((false, None)) };
            let stage = self.begin(&entered, mpi)?;
            self.current = Some((entered, stage));
        }
        let Some((_, stage)) = &mut self.current else { return Ok((false, None)) };
        let is_done = match stage {
            Stage::Heads { under_way, .. } => under_way.test()?,
            Stage::Chunks { under_way, .. } | Stage::Reduce { under_way, .. } => {
                under_way.test()?
            }
            Stage::Spread { under_way, .. } => under_way.test()?,
            Stage::Words { under_way, .. } => under_way.test()?,
        };
        if !is_done {
            return Ok((false, None));
        }
        let Some((entered, stage)) = self.current.take() else { return Ok((false, None)) };
        let result = match stage {
            Stage::Heads { under_way, words } => {
                let blocks = under_way.take().1;
                let heads = self.heads(&blocks, &entered, mpi.size)?;
                match self.after_heads(&entered, (heads, &blocks), words, mpi)? {
                    Next::Stage(stage) => {
                        self.current = Some((entered, stage));
                        return Ok((true, None));
                    }
                    Next::Result(result) => result,
                }
            }
            Stage::Chunks { under_way, tails, layout, result } => {
                let (mine, mut scratch) = under_way.take();
                layout.add(mine.as_deref().map(numbers), &mut scratch, mpi.rank);
                let ranges = layout.pieces(layout.length);
                let under_way = mpi.spread(scratch, layout.added.clone(), result, &ranges)?;
                self.current = Some((entered, Stage::Spread { under_way, tails, layout }));
                return Ok((true, None));
            }
            Stage::Spread { under_way, tails, layout } => {
                let (scratch, result) = under_way.take();
                self.scratch = scratch;
                match layout.next(mpi.rank) {
                    Some(layout) => {
                        let stage = self.exchange_piece(&entered, layout, tails, result, mpi)?;
                        self.current = Some((entered, stage));
                        return Ok((true, None));
                    }
                    None => self.sum(&entered, result, tails),
                }
            }
            Stage::Reduce { under_way, tails } => self.sum(&entered, under_way.take().1, tails),
            Stage::Words { under_way, heads, ranges } => {
                let words = under_way.take().1;
                self.meet(&entered, heads, |rank, _| {
                    bytemuck::cast_slice(&words[ranges[rank].clone()])
                })?
            }
        };
        Ok((true, Some((entered.ticket, result))))
    }

    fn begin(&self, entered: &Entered, mpi: &Mpi) -> Result<Stage, MpiError> {
        assert_eq!(entered.view.members.len(), mpi.size, "all ranks are members");
        let name = ExchangeName { view: entered.view.name(), exchange: entered.number };
        let mut words = vec![];
        let (entry, numbers) = match &entered.entry {
            Entry::Sum { payload, tail } => {
                if !self.is_long(payload.len()) && !payload.is_empty() {
                    words = in_words(payload);
                }
                let (tail, form) = (tail.clone(), Form::of(payload));
                (EntryHead::Sum { tail, form }, payload.len() as u64)
            }
            Entry::Gather { standing } => (EntryHead::Gather { standing: standing.clone() }, 0),
        };
        let head = Head { name, entry, numbers, words: words.len() as u64 };
        let bytes = rmp_serde::to_vec_named(&head).expect("heads are plain data");
        assert!(bytes.len() + 2 <= HEAD, "a head is a handful of numbers");
        let mut block = (bytes.len() as u16).to_le_bytes().to_vec();
        block.extend(bytes);
        block.resize(HEAD, 0);
        if self.fits_behind(words.len() as u64) {
            block.extend_from_slice(bytemuck::cast_slice(&words));
            words.clear();
        }
        block.resize(self.block, 0);
        Ok(Stage::Heads { under_way: mpi.gather(block)?, words })
    }

    /// Whether so many words have room behind a head.
    fn fits_behind(&self, words: u64) -> bool {
        words <= ((self.block - HEAD) / 4) as u64
    }

    /// Whether vectors of this length are added in chunks, or by MPI.
    fn is_long(&self, numbers: usize) -> bool {
        self.shape.codec == Codec::Dense && 4 * numbers > CHUNKED_FROM
    }

    /// Reads the heads of all ranks, and checks that they are of one exchange and of this job's length.
    fn heads(&self, blocks: &[u8], entered: &Entered, size: usize) -> Result<Vec<Head>, MpiError> {
        let mine = ExchangeName { view: entered.view.name(), exchange: entered.number };
        let words_max = Limits::for_replica(self.shape.size()).body / 4;
        let read = |(rank, block): (usize, &[u8])| {
            let wrong = |what: &str| MpiError::Violation { rank, what: what.to_owned() };
            let length = usize::from(u16::from_le_bytes([block[0], block[1]]));
            let bytes =
                block[..HEAD].get(2..2 + length).ok_or_else(|| wrong("a head without an end"))?;
            let head: Head =
                rmp_serde::from_slice(bytes).map_err(|_| wrong("a head that cannot be read"))?;
            if head.name != mine {
                return Err(wrong("another exchange than this rank is in"));
            }
            if head.numbers != 0 && head.numbers != self.shape.size() as u64 {
                return Err(wrong("a vector of another length"));
            }
            if head.words > words_max {
                return Err(wrong("an encoded vector that is too long"));
            }
            Ok(head)
        };
        assert_eq!(blocks.len(), self.block * size, "every rank has sent a block");
        blocks.chunks(self.block).enumerate().map(read).collect()
    }

    fn after_heads(
        &mut self,
        entered: &Entered,
        (heads, blocks): (Vec<Head>, &[u8]),
        words: Vec<u32>,
        mpi: &Mpi,
    ) -> Result<Next, MpiError> {
        let lengths: Vec<usize> = heads.iter().map(|head| head.numbers as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let Entry::Sum { payload, .. } = &entered.entry else {
            return Ok(Next::Result(self.meet(entered, heads, |_, _| &[])?));
        };
        if heads.iter().all(|head| self.fits_behind(head.words)) && !self.is_long(longest) {
            let behind =
                |rank: usize, words: usize| &blocks[rank * self.block + HEAD..][..4 * words];
            return Ok(Next::Result(self.meet(entered, heads, behind)?));
        }
        if !self.is_long(longest) {
            let mut end = 0;
            let range = |head: &Head| {
                let start = end;
                end += head.words as usize;
                start..end
            };
            let ranges: Vec<Range<usize>> = heads.iter().map(range).collect();
            let under_way = mpi.spread_words(words, &ranges)?;
            return Ok(Next::Stage(Stage::Words { under_way, heads, ranges }));
        }
        let tails = tails(heads)?;
        let result = self.memory(longest);
        if self.sums == Sums::Mpi {
            let nothing = || Arc::new(Payload::dense(Vector::filled(-0.0, longest)));
            let mine = if payload.is_empty() { nothing() } else { payload.clone() };
            let under_way = mpi.reduce(mine, result)?;
            return Ok(Next::Stage(Stage::Reduce { under_way, tails }));
        }
        let layout = Layout::new(lengths, 0, mpi.rank);
        Ok(Next::Stage(self.exchange_piece(entered, layout, tails, result, mpi)?))
    }

    /// Starts to give all ranks their parts of a piece.
    fn exchange_piece(
        &mut self,
        entered: &Entered,
        layout: Layout,
        tails: Vec<Tail>,
        result: Vector,
        mpi: &Mpi,
    ) -> Result<Stage, MpiError> {
        let mine = match &entered.entry {
            Entry::Sum { payload, .. } if !payload.is_empty() => Some(payload.clone()),
            _ => None,
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.len() < layout.added.end {
            scratch = Vector::zeros(layout.added.end);
        }
        let mut send = layout.pieces(mine.as_ref().map_or(0, |payload| payload.len()));
        // This rank's own part stays where it is.
        send[mpi.rank] = 0..0;
        let under_way = mpi.scatter(mine, &send, scratch, &layout.received)?;
        Ok(Stage::Chunks { under_way, tails, layout, result })
    }

    /// Memory for a result: that of an older one, if nobody holds it any more.
    fn memory(&mut self, length: usize) -> Vector {
        let is_free = |sum: &Arc<Sum>| Arc::strong_count(sum) == 1;
        let free = self.results.iter().position(is_free).and_then(|i| self.results.remove(i));
        let vector = free.and_then(|sum| Arc::try_unwrap(sum).ok()).map(|sum| sum.gradient.sum);
        vector.filter(|vector| vector.len() == length).unwrap_or_else(|| Vector::zeros(length))
    }

    fn sum(&mut self, entered: &Entered, vector: Vector, tails: Vec<Tail>) -> ExchangeResult {
        let sum = Arc::new(Sum::new(entered.number, entered.view.clone(), vector, tails));
        if self.results.len() >= REUSED {
            self.results.pop_front();
        }
        self.results.push_back(sum.clone());
        ExchangeResult::Summed(sum)
    }

    /// All entries are here as they are: the result is what it is on every cluster. `words` gives the words of a rank, as bytes.
    fn meet<'a>(
        &self,
        entered: &Entered,
        heads: Vec<Head>,
        words: impl Fn(usize, usize) -> &'a [u8],
    ) -> Result<ExchangeResult, MpiError> {
        let mut meeting = Meeting::new(heads.len());
        let is_sum = matches!(entered.entry, Entry::Sum { .. });
        for (rank, head) in heads.into_iter().enumerate() {
            let wrong = |what: &str| MpiError::Violation { rank, what: what.to_owned() };
            let entry = match head.entry {
                EntryHead::Gather { standing } if !is_sum => Entry::Gather { standing },
                EntryHead::Sum { tail, form } if is_sum => {
                    let payload = match head.words {
                        0 => Some(Payload::dense(Vector::new())),
                        count => self.payload(form, words(rank, count as usize)),
                    };
                    let payload = payload.ok_or_else(|| wrong("a payload that does not fit"))?;
                    Entry::Sum { payload: Arc::new(payload), tail }
                }
                _ => return Err(wrong("another kind of exchange")),
            };
            meeting.enter(rank, entry);
        }
        Ok(meeting.end(self.shape.seed, entered.view.clone(), entered.number))
    }

    fn payload(&self, form: Form, mut bytes: &[u8]) -> Option<Payload> {
        let mut decoder = Decoder::new(Limits::for_replica(self.shape.size()), Pool::default());
        let arrived = decoder.take(&mut bytes).ok()??;
        form.fill(arrived.segments).filter(|payload| self.shape.fits(payload))
    }
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
enum Next {
    Stage(Stage),
    Result(ExchangeResult),
}

/// A payload as a frame, padded to whole words.
fn in_words(payload: &Payload) -> Vec<u32> {
    let slices = payload_slices(payload);
    let mut bytes = encode(&(), &slices);
    slices.into_iter().for_each(|slice| bytes.extend_from_slice(bytes_of(slice)));
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytemuck::pod_collect_to_vec(&bytes)
}

/// A piece of the chunk that a rank adds up.
fn piece_of(length: usize, size: usize, rank: usize, piece: usize) -> Range<usize> {
    let chunk = chunk(length, size, rank);
    let long = PIECE.max(length.div_ceil(size).div_ceil(PIECES_MAX));
    let at = |piece: usize| chunk.end.min(chunk.start + piece * long);
    at(piece)..at(piece + 1)
}

fn tails(heads: Vec<Head>) -> Result<Vec<Tail>, MpiError> {
    let tail = |(rank, head): (usize, Head)| match head.entry {
        EntryHead::Sum { tail, .. } => Ok(tail),
        EntryHead::Gather { .. } => {
            Err(MpiError::Violation { rank, what: "another kind of exchange".to_owned() })
        }
    };
    heads.into_iter().enumerate().map(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks and adds as the ranks do, without MPI between them.
    fn summed(parts: &[Option<Vec<f32>>]) -> Vec<f32> {
        let n = parts.len();
        let lengths: Vec<usize> =
            parts.iter().map(|part| part.as_ref().map_or(0, Vec::len)).collect();
        let mut sum = vec![f32::NAN; lengths.iter().copied().max().unwrap_or(0)];
        for rank in 0..n {
            let mut next = Some(Layout::new(lengths.clone(), 0, rank));
            while let Some(layout) = next {
                let here = layout.pieces(layout.length)[rank].clone();
                let mut scratch = vec![f32::NAN; layout.added.end];
                for j in (0..n).filter(|j| *j != rank) {
                    if let Some(part) = &parts[j] {
                        scratch[layout.received[j].clone()].copy_from_slice(&part[here.clone()]);
                    }
                }
                layout.add(parts[rank].as_deref(), &mut scratch, rank);
                sum[here].copy_from_slice(&scratch[layout.added.clone()]);
                next = layout.next(rank);
            }
        }
        sum
    }

    #[test]
    fn chunks_are_added_in_rank_order_and_members_without_samples_change_no_bit() {
        let value = |r: usize, i: usize| ((i * 7919 + r * 104_729) % 1_000_003) as f32 * 1.37e-4;
        let several = 3 * PIECE + 1;
        for (members, length) in
            [(2, 9000), (3, 10_001), (5, 4097), (7, 3), (2, several), (3, several)]
        {
            for missing in [None, Some(0), Some(members - 1)] {
                let part = |r: usize| {
                    let numbers = (0..length).map(|i| if i == 0 { -0.0 } else { value(r, i) });
                    (Some(r) != missing).then(|| numbers.collect::<Vec<f32>>())
                };
                let parts: Vec<Option<Vec<f32>>> = (0..members).map(part).collect();

                let sum = summed(&parts);

                let mut plain = parts.iter().flatten();
                let mut expected = plain.next().cloned().expect("somebody adds something");
                plain.for_each(|part| add(&mut expected, part));
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                assert_eq!(bits(&sum), bits(&expected), "{members} members, without {missing:?}");
            }
        }
    }
}
