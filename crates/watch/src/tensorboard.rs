//! Scalars for TensorBoard: an event file that grows while a run goes on.
//!
//! A file is a row of records (length, its checksum, bytes, their checksum), each a protobuf `Event`.
//! Only the few fields that scalars need are written, by hand.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_runtime::{Line, Reader, Record};

use crate::pulse::{Beat, Pulse};

/// Writes a journal's scalars; a step is a sample, so that strategies with unlike rounds can be compared.
pub struct TensorBoard {
    path: PathBuf,
    out: BufWriter<File>,
    /// Seconds since 1970 at which the run began.
    began: f64,
    pulse: Pulse,
    error: Option<io::Error>,
}

impl TensorBoard {
    /// A new event file in a folder, which is made if need be.
    pub fn create(folder: &Path, began: SystemTime) -> Result<TensorBoard, String> {
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        // The viewer looks for "tfevents" and sorts by the time; the process keeps two runs of one second apart.
        let name =
            format!("events.out.tfevents.{:010}.paceline.{}", began.as_secs(), std::process::id());
        let path = folder.join(name);
        let file = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
        let file = file.map_err(|error| {
            format!("cannot write TensorBoard's events to {}: {error}", folder.display())
        })?;
        let mut board = TensorBoard {
            path,
            out: BufWriter::new(file),
            began: began.as_secs_f64(),
            pulse: Pulse::default(),
            error: None,
        };
        let mut version = protobuf::double(1, board.began);
        version.extend(protobuf::bytes(3, b"brain.Event:2"));
        board.write(&version);
        board.flush();
        match board.error {
            Some(error) => Err(incomplete(&board.path, &error)),
            None => Ok(board),
        }
    }

    /// Writes what is left; a write that failed at any time is told here, for a run goes on without its scalars.
    pub fn finish(mut self) -> Result<(), String> {
        self.flush();
        self.error.map_or(Ok(()), |error| Err(incomplete(&self.path, &error)))
    }

    fn scalars(&mut self, line: &Line, step: u64, scalars: &[(&str, f64)]) {
        let mut summary = vec![];
        for (tag, value) in scalars {
            let mut scalar = protobuf::bytes(1, tag.as_bytes());
            scalar.extend(protobuf::float(2, *value as f32));
            summary.extend(protobuf::bytes(1, &scalar));
        }
        let mut event = protobuf::double(1, self.began + line.at.as_secs_f64());
        event.extend(protobuf::varint_field(2, step));
        event.extend(protobuf::bytes(5, &summary));
        self.write(&event);
    }

    fn write(&mut self, event: &[u8]) {
        if self.error.is_none() {
            self.error = self.out.write_all(&framed(event)).err();
        }
    }

    fn flush(&mut self) {
        if self.error.is_none() {
            self.error = self.out.flush().err();
        }
    }
}

impl Reader for TensorBoard {
    fn read(&mut self, line: &Line) {
        if let Some(beat) = self.pulse.read(line) {
            let Beat { samples, loss, rate, samples_per_second, utilization, bytes_total } = beat;
            let scalars = [
                ("train/loss", loss),
                ("train/lr", rate),
                ("perf/samples_per_second", samples_per_second),
                ("perf/utilization", utilization),
                ("comm/bytes_total", bytes_total as f64),
            ];
            self.scalars(line, samples, &scalars);
        }
        if let Record::Scored { samples, loss, accuracy } = &line.record {
            self.scalars(line, *samples, &[("eval/loss", *loss), ("eval/accuracy", *accuracy)]);
            // Whoever watches sees each epoch when it has ended.
            self.flush();
        }
    }
}

fn incomplete(path: &Path, error: &io::Error) -> String {
    format!("TensorBoard's events in {} are incomplete: {error}", path.display())
}

/// A record as event files have it.
fn framed(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(event);
    record.extend(masked_checksum(event).to_le_bytes());
    record
}

/// CRC-32C, turned and moved so that checksums of data with checksums in it stay good.
fn masked_checksum(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The few kinds of protobuf fields that scalars need.
mod protobuf {
    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = vec![];
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn key(field: u64, kind: u64) -> Vec<u8> {
        varint(field << 3 | kind)
    }

    pub fn varint_field(field: u64, value: u64) -> Vec<u8> {
        [key(field, 0), varint(value)].concat()
    }

    pub fn double(field: u64, value: f64) -> Vec<u8> {
        [key(field, 1), value.to_le_bytes().to_vec()].concat()
    }

    pub fn bytes(field: u64, bytes: &[u8]) -> Vec<u8> {
        [key(field, 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
    }

    pub fn float(field: u64, value: f32) -> Vec<u8> {
        [key(field, 5), value.to_le_bytes().to_vec()].concat()
    }
}

#[cfg(test)]
mod tests;
