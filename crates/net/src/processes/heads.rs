//! Messages of exchanges as words of a fixed order: for notices in shared memory, and for the heads of their frames. Reading fields by
//! their names takes longer than adding a short vector.

use super::message::{EntryHead, ExchangeName, Form, PeerMessage};
use super::words::{TAIL_WORDS, of_tail, to_tail};

pub const HEAD_WORDS: usize = 6 + TAIL_WORDS;

/// `None` if this is not a message of an exchange, or a standing, which has no fixed length.
pub fn encode(message: &PeerMessage) -> Option<[u64; HEAD_WORDS]> {
    let (kind, name, form, length, flag, tail) = match message {
        PeerMessage::Entry { name, entry: EntryHead::Sum { tail, form } } => {
            (1, name, form, 0, false, Some(tail))
        }
        PeerMessage::Chunk { name, tail, form, length, is_free } => {
            (2, name, form, *length, *is_free, Some(tail))
        }
        PeerMessage::Sum { name, form, in_slot } => (3, name, form, 0, *in_slot, None),
        PeerMessage::Piece { name, start, of_sum } => {
            (4, name, &Form::Dense, *start, *of_sum, None)
        }
        _ => return None,
    };
    let (form_kind, bits, bucket, form_length) = match *form {
        Form::Dense => (0, 0, 0, 0),
        Form::Half => (1, 0, 0, 0),
        Form::Quantized { bits, bucket, length } => (2, bits, bucket, length),
        Form::Sparse { length } => (3, 0, 0, length),
    };
    let mut words = [0; HEAD_WORDS];
    words[0] = kind
        | form_kind << 8
        | u64::from(flag) << 16
        | u64::from(bits) << 24
        | u64::from(bucket) << 32;
    words[1..4].copy_from_slice(&<[u64; 3]>::from(*name));
    words[4] = length;
    words[5] = u64::from(form_length);
    if let Some(tail) = tail {
        words[6..].copy_from_slice(&of_tail(tail));
    }
    Some(words)
}

/// `None` if it is not a message of this version.
pub fn decode(words: &[u64; HEAD_WORDS]) -> Option<PeerMessage> {
    let name = ExchangeName::from([words[1], words[2], words[3]]);
    let flag = words[0] >> 16 & 1 == 1;
    let (bits, bucket) = ((words[0] >> 24) as u8, (words[0] >> 32) as u32);
    let length = u32::try_from(words[5]).ok()?;
    let form = match words[0] >> 8 & 0xff {
        0 => Form::Dense,
        1 => Form::Half,
        2 => Form::Quantized { bits, bucket, length },
        3 => Form::Sparse { length },
        _ => return None,
    };
    let tail = || to_tail(std::array::from_fn(|i| words[6 + i]));
    Some(match words[0] & 0xff {
        1 => PeerMessage::Entry { name, entry: EntryHead::Sum { tail: tail(), form } },
        2 => PeerMessage::Chunk { name, tail: tail(), form, length: words[4], is_free: flag },
        3 => PeerMessage::Sum { name, form, in_slot: flag },
        4 => PeerMessage::Piece { name, start: words[4], of_sum: flag },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_runtime::view::ViewName;
    use paceline_runtime::wire::{Extra, Tail};

    use super::*;

    #[test]
    fn heads_come_out_as_they_went_in() {
        let name = ExchangeName { view: ViewName { incarnation: 3, number: 9 }, exchange: 70 };
        let tail = Tail {
            plan: 1,
            samples: 2,
            loss_sum: -0.5,
            weight: Some(2.5),
            version: 4,
            compute: Duration::from_nanos(123_456_789_012),
            extra: Extra::Value(f64::INFINITY),
            stop: true,
            save: 5,
            digest: u64::MAX,
        };
        let form = Form::Quantized { bits: 7, bucket: u32::MAX, length: 12 };
        let sparse = Form::Sparse { length: 8 };
        let messages = [
            PeerMessage::Chunk { name, tail: tail.clone(), form, length: 1 << 33, is_free: true },
            PeerMessage::Entry { name, entry: EntryHead::Sum { tail, form: sparse } },
            PeerMessage::Sum { name, form: Form::Half, in_slot: false },
            PeerMessage::Piece { name, start: u64::MAX, of_sum: true },
        ];
        for message in messages {
            let words = encode(&message).expect("it can be written");
            let again = decode(&words).expect("it can be read");
            assert_eq!(format!("{again:?}"), format!("{message:?}"));
        }
        assert!(encode(&PeerMessage::Mapped { cursor: 1 }).is_none());
    }

    #[test]
    fn words_that_are_no_head_are_refused_and_never_panic() {
        for seed in 0..2000 {
            let mut dice = paceline_learn::Dice::keyed(&[seed]);
            let _ = decode(&std::array::from_fn(|_| dice.draw() >> dice.below(64)));
        }
        assert!(decode(&[0; HEAD_WORDS]).is_none(), "no kind");
    }
}
