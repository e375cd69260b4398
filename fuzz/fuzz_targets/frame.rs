//! Frames of links: the same frames come out however their bytes are cut, and what came out can be sent again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::within;
use paceline_learn::kernels::Pool;
use paceline_net::processes::frame::{
    Arrived, Decoder, FrameReader, Limits, Segment, Slice, WORDS, bytes_of, encode_words, write_frame,
};
use serde_json::Value;

const LIMITS: Limits = Limits { head: 1 << 16, body: 1 << 16 };

/// A message, if it is words or one that JSON can hold, and its segments as bytes.
type Frame = (Option<Message>, Vec<(bool, Vec<u8>)>);

#[derive(Clone, Debug, PartialEq)]
enum Message {
    Named(Value),
    Words([u64; WORDS]),
}

fuzz_target!(|data: &[u8]| {
    let Some((step, data)) = data.split_first() else { return };
    // A segment of no bytes takes one of a head and less than two hundred here; bodies are allocated as a whole.
    within(LIMITS.body as usize + (1 << 20) + 256 * data.len(), || {
        let (whole, is_refused) = decoded(data, data.len().max(1));
        assert_eq!(decoded(data, usize::from(*step).max(1)), (whole.clone(), is_refused));
        assert_eq!(read(data), (whole.clone(), is_refused));
        for (message, segments) in whole {
            let Some(message) = message else { continue };
            let floats: Vec<Vec<f32>> = segments.iter().map(|(_, bytes)| floats(bytes)).collect();
            let slices = segments.iter().zip(&floats).map(|((is_floats, bytes), floats)| {
                if *is_floats { Slice::Floats(floats) } else { Slice::Bytes(bytes) }
            });
            let slices: Vec<Slice<'_>> = slices.collect();
            let mut again = vec![];
            match &message {
                Message::Named(value) => write_frame(&mut again, value, &slices).expect("memory"),
                Message::Words(words) => {
                    again = encode_words(words, &slices, 0).expect("it had no more segments");
                    slices.iter().for_each(|it| again.extend_from_slice(bytes_of(*it)));
                }
            }
            assert_eq!(decoded(&again, again.len()), (vec![(Some(message), segments)], false));
        }
    });
});

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect()
}

fn frame(arrived: Arrived) -> Frame {
    let named = || arrived.message().ok().map(Message::Named);
    let message = arrived.words().map(Message::Words).or_else(named);
    let segments = arrived.segments.iter().map(|segment| match segment {
        Segment::Floats(floats) => (true, bytes_of(Slice::Floats(floats)).to_vec()),
        Segment::Bytes(bytes) => (false, bytes.clone()),
    });
    (message, segments.collect())
}

/// All frames, and whether something was refused behind them.
fn decoded(data: &[u8], step: usize) -> (Vec<Frame>, bool) {
    let (mut decoder, mut frames) = (Decoder::new(LIMITS, Pool::default()), vec![]);
    for mut part in data.chunks(step) {
        loop {
            match decoder.take(&mut part) {
                Ok(Some(arrived)) => frames.push(frame(arrived)),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

fn read(data: &[u8]) -> (Vec<Frame>, bool) {
    let (mut reader, mut frames) = (FrameReader::new(data, LIMITS), vec![]);
    loop {
        match reader.read_frame() {
            Ok(Some(arrived)) => frames.push(frame(arrived)),
            Ok(None) => return (frames, false),
            Err(_) => return (frames, true),
        }
    }
}
