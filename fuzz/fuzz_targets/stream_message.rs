//! Messages between a worker process and the coordinator that is its parent: snapshots and their parts, words, orders and jobs.

#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::{allowed_for, frames_and_head, packed, within};
use paceline_net::processes::message::{Down, PackedSnapshot, Up};
use paceline_runtime::wire::Framed;

fuzz_target!(|data: &[u8]| {
    let Some((frames, head)) = frames_and_head(data) else { return };
    within(allowed_for(data), || {
        if let Some(mut up) = packed::<Up>(head)
            && up.fill(frames.clone()).is_ok()
        {
            assert_eq!(up.frames().len(), frames.len());
        }
        let Some(mut down) = packed::<Down>(head) else { return };
        if down.fill(frames.clone()).is_err() {
            return;
        }
        if let Down::Snapshot(snapshot) = down {
            let snapshot = snapshot.unpack();
            let (_, _, _) = (snapshot.rounds_mean(), snapshot.version(), snapshot.is_finite());
            let again = PackedSnapshot::pack(&snapshot).unpack();
            assert_eq!(again.workers.len(), snapshot.workers.len());
        }
    });
});
