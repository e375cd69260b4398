//! The manifest of a checkpoint: damage is noticed, and whatever has a right checksum is read or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::{allowed_for, within};
use paceline_job::checkpoint::fuzzing::{parse, seal, with_checksum};

fuzz_target!(|data: &[u8]| {
    let Some((version, data)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(data) else { return };
    within(allowed_for(data), || {
        let sealed = match version % 6 {
            0 => text.to_owned(),
            version => with_checksum(u32::from(version), text),
        };
        let Some(manifest) = parse(&sealed) else { return };
        // JSON has no infinity, so that not every manifest can be written.
        let Some(once) = seal(&manifest) else { return };
        let again = parse(&once).expect("what was written can be read");
        assert_eq!(seal(&again).as_ref(), Some(&once));
    });
});
