//! Messages between the coordinator and workers of other machines, in both directions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_coordinator::fuzzing::{Down, Up, decode};
use paceline_coordinator::{Admitted, Answer, Described, FileHead};
use paceline_fuzz::{allowed_for, json, within};

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    within(allowed_for(data), || match kind % 6 {
        0 | 1 => assert_eq!(json::<Up>(data).is_some(), decode::<Up>(data).is_some()),
        2 | 3 => drop(json::<Down>(data)),
        4 => drop((json::<Answer<Admitted>>(data), json::<Answer<Described>>(data))),
        _ => {
            if let Some(head) = json::<FileHead>(data).filter(FileHead::is_plain) {
                let path = std::path::Path::new("folder").join(&head.name);
                assert_eq!(path.parent(), Some(std::path::Path::new("folder")), "{head:?}");
                assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(&head.name[..]));
            }
        }
    });
});
