//! Lines of journals, from files and from workers: whatever they say, they can be counted, hashed and written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::{allowed_for, json, within};
use paceline_runtime::{Journal, Line, SampleTally};

fuzz_target!(|data: &[u8]| {
    within(allowed_for(data), || {
        let (mut tally, mut journal) = (SampleTally::default(), Journal::default());
        for line in data.split(|byte| *byte == b'\n').filter_map(json::<Line>) {
            let _ = (line.record.worker(), line.record.round());
            journal.write(&line);
            let samples = tally.read(&line);
            assert!(tally.samples() >= samples || samples == 0);
        }
        let _ = (journal.hash(), tally.computed(), tally.wasted(), tally.epochs(tally.samples()));
        let _ = (tally.verdict(false), tally.verdict(true));
    });
});
