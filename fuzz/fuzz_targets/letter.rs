//! Letters and published values: heads with frames that may not fit them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::{allowed_for, frames_and_head, packed, within};
use paceline_runtime::Letter;
use paceline_runtime::wire::{Frame, Framed, Published, ReceivedFrame};

fuzz_target!(|data: &[u8]| {
    let Some((frames, head)) = frames_and_head(data) else { return };
    within(allowed_for(data), || {
        if let Some(mut value) = packed::<Published>(head)
            && value.fill(frames.clone()).is_ok()
        {
            assert!(are_equal(&value.frames(), &frames));
            let _ = value.bytes();
        }
        let Some(mut letter) = packed::<Letter>(head) else { return };
        if letter.fill(frames.clone()).is_err() {
            return;
        }
        assert!(are_equal(&letter.frames(), &frames), "{letter:?}");
        let _ = (letter.bytes(), letter.numbers_for_server(), letter.is_for_server());
        if let Letter::Result { sum, .. } = &letter {
            let _ = (sum.version(), sum.plan(), sum.stop(), sum.save(), sum.digest());
            let _ = (sum.dissenters(), sum.counts().count(), sum.efforts().count());
        }
    });
});

/// Bit by bit: numbers may be no numbers.
fn are_equal(sent: &[Frame<'_>], received: &[ReceivedFrame]) -> bool {
    let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let is_equal = |(sent, received): (&Frame<'_>, &ReceivedFrame)| match (sent, received) {
        (Frame::Floats(sent), ReceivedFrame::Floats(received)) => bits(sent) == bits(received),
        (Frame::Bytes(sent), ReceivedFrame::Bytes(received)) => *sent == &received[..],
        _ => false,
    };
    sent.len() == received.len() && sent.iter().zip(received).all(is_equal)
}
