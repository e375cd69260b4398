//! Messages between workers with their vectors: what fits the job can be added, and takes no more memory than the job's own vectors.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::{allowed_for, frames_and_head, packed, within};
use paceline_net::processes::Shape;
use paceline_net::processes::message::{EntryHead, Form, PeerMessage, payload_slices};
use paceline_runtime::codec::{Codec, Payload};
use paceline_runtime::wire::{Entry, Framed, Letter, ReceivedFrame, Tail};
use paceline_runtime::{Meeting, View, WorkerId};

fuzz_target!(|data: &[u8]| {
    let Some((codec, data)) = data.split_first() else { return };
    let codec = match codec % 4 {
        0 => Codec::Dense,
        1 => Codec::Half,
        2 => Codec::Qsgd { bits: 4, bucket: 8 },
        _ => Codec::TopK { fraction: 0.5 },
    };
    let shape = Shape { seed: 1, params: 20, buffers: 3, codec };
    let Some((frames, head)) = frames_and_head(data) else { return };
    within(allowed_for(data), || {
        let Some(message) = packed::<PeerMessage>(head) else { return };
        match message {
            PeerMessage::Entry { entry: EntryHead::Sum { tail, form }, .. }
            | PeerMessage::Chunk { tail, form, .. } => add(shape, form, frames, tail),
            PeerMessage::Sum { form, .. } => add(shape, form, frames, Tail::default()),
            PeerMessage::Letter { mut letter, form } => match (&mut *letter, form) {
                (Letter::Gradient { .. }, Some(form)) => add(shape, form, frames, Tail::default()),
                (letter, _) => drop(letter.fill(frames)),
            },
            PeerMessage::Value { value: Some(mut value), .. } => drop(value.fill(frames)),
            _ => {}
        }
    });
});

/// A payload that fits is added to itself, and so are its chunks.
fn add(shape: Shape, form: Form, frames: Vec<ReceivedFrame>, tail: Tail) {
    let Some(payload) = form.fill(frames).filter(|payload| shape.fits(payload)) else { return };
    assert_eq!(Form::of(&payload), form);
    let frames = payload_slices(&payload).into_iter().map(ReceivedFrame::from).collect();
    assert!(form.fill(frames).is_some_and(|again| again.len() == payload.len()));
    if payload.is_empty() {
        return;
    }
    // Sparse ones are not divided.
    if !matches!(form, Form::Sparse { .. }) {
        for j in 0..3 {
            // Quantized ones reach to the borders of their buckets.
            let (learned, buffers) = payload.chunk_lengths((shape.params, shape.buffers), 3, j);
            assert_eq!(payload.chunk(3, j).check(learned, buffers), Ok(()));
        }
    }
    let entry = Entry::Sum { payload: Arc::<Payload>::new(payload), tail };
    let mut meeting = Meeting::new(2);
    meeting.enter(0, entry.clone());
    meeting.enter(1, entry);
    let members = vec![WorkerId(0), WorkerId(1)];
    let view = Arc::new(View { incarnation: 0, number: 1, members });
    drop(meeting.end(shape.seed, view, 1));
}
