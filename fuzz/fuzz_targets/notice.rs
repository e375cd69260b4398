//! Notices of a board in shared memory: any words are refused, or are a notice that can be written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::within;
use paceline_net::processes::fuzzing::{NOTICE_WORDS, decode_notice, encode_notice};

fuzz_target!(|data: &[u8]| {
    let mut words = [0; NOTICE_WORDS];
    for (word, bytes) in words.iter_mut().zip(data.chunks(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    within(4096, || {
        let Some((message, places)) = decode_notice(&words) else { return };
        let once = encode_notice(&message, &places).expect("it was a notice");
        let (message, places) = decode_notice(&once).expect("what was written can be read");
        assert_eq!(encode_notice(&message, &places), Some(once));
    });
});
