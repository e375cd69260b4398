//! Adds up the bytes that the journal reports, to be compared with the bytes that crossed the links.

use paceline_runtime::{Line, Reader, Record};

#[derive(Default)]
pub struct Traffic {
    pub bytes: u64,
}

impl Reader for Traffic {
    fn read(&mut self, line: &Line) {
        if let Record::Exchanged { bytes, .. }
        | Record::Interrupted { bytes, .. }
        | Record::Sent { bytes, .. } = &line.record
        {
            self.bytes += bytes;
        }
    }
}
