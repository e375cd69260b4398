//! The bytes that the journal tells of are the bytes that crossed the wires.

use paceline_runtime::{Line, Reader, Record};

#[derive(Default)]
pub struct Traffic {
    pub bytes: u64,
}

impl Reader for Traffic {
    fn read(&mut self, line: &Line) {
        if let Record::Exchanged { bytes, .. } | Record::Sent { bytes, .. } = &line.record {
            self.bytes += bytes;
        }
    }
}
