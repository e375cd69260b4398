//! Notices of exchanges as words in shared memory.
//!
//! Every member writes its notices to the board in its own segment, and all its readers read them there. A notice names the memory in
//! which the numbers lie. Words are atomic, and the last one to be written is the notice's number: 0 stands there while the others change,
//! so that a reader that is overtaken, which finds another number behind the words than before them, sees nothing, never half of a notice.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use paceline_learn::kernels::shared::PeerSegment;

use super::super::frame::BYTES;
use super::super::heads::{self, HEAD_WORDS};
use super::super::message::PeerMessage;

/// Whether the owner of a segment wants to be woken when there is something for it to read. If not, it looks before it takes part in the next
/// exchange; until then it computes, or it has left.
pub const WANTS_BELL: usize = 0;
/// How far the owner of a segment has read the boards of others: one word each.
pub const CURSORS: usize = 64;
pub const CURSORS_MAX: usize = 512;
const BOARD: usize = 1024;
/// How many notices there is room for.
const SLOTS: u64 = 16;
/// How many may be unread: when one is written, the place behind it is cleared for the next one.
pub const UNREAD_MAX: u64 = SLOTS - 1;
pub const NOTICE_WORDS: usize = 32;
/// Bytes of all words of a segment.
pub const CONTROL: usize = (BOARD + SLOTS as usize * NOTICE_WORDS) * 8;

/// Some numbers or bytes in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub is_floats: bool,
    /// In bytes from the beginning of the segment.
    pub start: usize,
    /// How many numbers or bytes.
    pub len: usize,
}

/// The most places that a notice names: a quantized payload has norms, levels and buffers.
pub const PLACES_MAX: usize = 3;
const PLACES: usize = 2;
const HEAD: usize = PLACES + 2 * PLACES_MAX;

/// Where a notice stands.
pub fn slot(number: u64) -> usize {
    BOARD + (number % SLOTS) as usize * NOTICE_WORDS
}

/// Writes a notice into the slot that [`clear`] has prepared.
pub fn write(words: &[AtomicU64], number: u64, message: &PeerMessage, places: &[Place]) -> bool {
    let Some(notice) = encode(message, places) else { return false };
    let at = slot(number);
    // The 0 comes before the words.
    fence(Ordering::Release);
    for (word, value) in words[at + 1..at + NOTICE_WORDS].iter().zip(&notice[1..]) {
        word.store(*value, Ordering::Relaxed);
    }
    // The reader's question whether it may sleep, and ours whether it does, must not pass each other.
    words[at].store(number, Ordering::SeqCst);
    true
}

/// Prepares the slot of a notice that will be written. This is done when the notice before it has been read, most likely, and not just before
/// it is written: readers look at this word all the time, so that each change of it takes as long as it takes a core to get a cache line.
pub fn clear(words: &[AtomicU64], number: u64) {
    words[slot(number)].store(0, Ordering::Relaxed);
}

/// A notice of a peer; `None` if there is none with this number. `Some(None)`: it is not one of this version.
#[allow(clippy::option_option)]
pub fn read(segment: &PeerSegment, number: u64) -> Option<Option<(PeerMessage, Vec<Place>)>> {
    let at = slot(number);
    if segment.word(at) != number {
        return None;
    }
    let mut notice = [0; NOTICE_WORDS];
    notice.iter_mut().enumerate().for_each(|(i, word)| *word = segment.word(at + i));
    (segment.word(at) == number).then(|| decode(&notice))
}

pub fn encode(message: &PeerMessage, places: &[Place]) -> Option<[u64; NOTICE_WORDS]> {
    if places.len() > PLACES_MAX {
        return None;
    }
    let mut words = [0; NOTICE_WORDS];
    words[1] = places.len() as u64;
    for (i, place) in places.iter().enumerate() {
        words[PLACES + 2 * i] = place.start as u64;
        words[PLACES + 2 * i + 1] = place.len as u64 | if place.is_floats { 0 } else { BYTES };
    }
    words[HEAD..HEAD + HEAD_WORDS].copy_from_slice(&heads::encode(message)?);
    Some(words)
}

pub fn decode(words: &[u64; NOTICE_WORDS]) -> Option<(PeerMessage, Vec<Place>)> {
    let count = usize::try_from(words[1]).ok().filter(|count| *count <= PLACES_MAX)?;
    let mut places = Vec::with_capacity(count);
    for i in 0..count {
        let (start, len) = (words[PLACES + 2 * i], words[PLACES + 2 * i + 1]);
        let (start, is_floats) = (usize::try_from(start).ok()?, len & BYTES == 0);
        places.push(Place { is_floats, start, len: usize::try_from(len & !BYTES).ok()? });
    }
    let message = heads::decode(&std::array::from_fn(|i| words[HEAD + i]))?;
    Some((message, places))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use paceline_learn::kernels::shared::OwnSegment;
    use paceline_runtime::view::ViewName;

    use super::super::super::message::{ExchangeName, Form};
    use super::*;

    #[test]
    fn notices_come_out_as_they_went_in() {
        let name = ExchangeName { view: ViewName { incarnation: 3, number: 9 }, exchange: 70 };
        let places = [
            Place { is_floats: true, start: 4096, len: 77 },
            Place { is_floats: false, start: 1 << 40, len: 3 },
            Place { is_floats: true, start: 0, len: 0 },
        ];
        let message = PeerMessage::Sum { name, form: Form::Half, in_slot: true };
        for count in 0..=PLACES_MAX {
            let words = encode(&message, &places[..count]).expect("it can be written");
            let (again, found) = decode(&words).expect("it can be read");
            assert_eq!(format!("{again:?}"), format!("{message:?}"));
            assert_eq!(found, places[..count]);
        }
    }

    #[test]
    fn words_that_are_no_notice_are_refused_and_never_panic() {
        for seed in 0..2000 {
            let mut dice = paceline_learn::Dice::keyed(&[seed]);
            let mut words = [0; NOTICE_WORDS];
            words.iter_mut().for_each(|word| *word = dice.draw() >> dice.below(64));
            let _ = decode(&words);
        }
        let mut words = [0; NOTICE_WORDS];
        assert!(decode(&words).is_none(), "no kind");
        words[HEAD] = 3;
        assert!(decode(&words).is_some());
        words[1] = PLACES_MAX as u64 + 1;
        assert!(decode(&words).is_none(), "too many places");
    }

    /// A peer that this process has put out is not waited for any more, and may still read.
    #[test]
    fn a_reader_that_is_overtaken_never_sees_half_of_a_notice() {
        const COUNT: u64 = 200_000;
        let own = OwnSegment::new(CONTROL, &[64]).expect("there is memory");
        let descriptor = own.descriptor().as_fd().try_clone_to_owned().expect("it is open");
        let peer = PeerSegment::new(descriptor, own.bytes()).expect("it has its seals");
        let written = AtomicU64::new(0);
        let view = ViewName { incarnation: 1, number: 1 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=COUNT {
                    let name = ExchangeName { view, exchange: number };
                    let message = PeerMessage::Sum { name, form: Form::Dense, in_slot: true };
                    let place = Place { is_floats: true, start: 0, len: number as usize };
                    assert!(write(own.words(), number, &message, &[place]));
                    clear(own.words(), number + 1);
                    written.store(number, Ordering::Relaxed);
                }
            });
            let mut last = 0;
            while last < COUNT {
                last = written.load(Ordering::Relaxed);
                // The next one to be overwritten.
                let number = last.saturating_sub(UNREAD_MAX - 1);
                let Some(Some((message, places))) = read(&peer, number) else { continue };
                let PeerMessage::Sum { name, .. } = message else { panic!("{message:?}") };
                assert_eq!((name.exchange, places[0].len as u64), (number, number));
            }
        });
        assert!(read(&peer, COUNT).is_some(), "what nobody overwrites is there");
        assert!(read(&peer, COUNT - UNREAD_MAX).is_none(), "its place is ready for the next one");
    }
}
