//! The coordinator's log: its records come out of any bytes, or the bytes are refused; and what was stored is replayed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_coordinator::fuzzing::{begin, record, records, replayed, stored};
use paceline_fuzz::{allowed_for, within};

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    within(allowed_for(data), || match kind % 4 {
        0 => {
            let Some((found, whole)) = records(data) else { return };
            assert!(whole <= data.len());
            check(&found, data.get(..whole).filter(|_| whole > 0));
        }
        1 => {
            // Records that are right, with an end that is cut off: the rest is not lost. They are text, which looks like no record.
            if data.contains(&0) {
                return;
            }
            let parts: Vec<Vec<u8>> =
                data.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            let bytes = check(&parts, None);
            let cut = bytes.len() - data.len() % bytes.len().min(40);
            let (found, _) = records(&bytes[..cut]).expect("a log that is cut off is no damage");
            assert_eq!(found[..], parts[..found.len()]);
        }
        2 => {
            let Some(once) = stored(data) else { return };
            assert_eq!(stored(&once).as_ref(), Some(&once), "what was stored can be read");
        }
        _ => {
            let Some(once) = replayed(data.split(|byte| *byte == b'\n')) else { return };
            assert_eq!(stored(&once).as_ref(), Some(&once), "what was stored can be read");
        }
    });
});

/// Writes records, and reads them again.
fn check(records_in: &[Vec<u8>], expected: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = begin();
    records_in.iter().for_each(|payload| bytes.extend(record(payload)));
    if let Some(expected) = expected {
        assert_eq!(bytes, expected);
    }
    assert_eq!(records(&bytes), Some((records_in.to_vec(), bytes.len())));
    bytes
}
