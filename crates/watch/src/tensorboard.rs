//! Scalars for TensorBoard: an event file that is written during the run.
//!
//! The file is a sequence of records (length, checksum of the length, bytes, checksum of the bytes), each
//! of them a protobuf `Event`. The few fields that scalars need are encoded here by hand.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_runtime::{Line, Reader, Record};

use crate::error::OutputError;
use crate::intervals::{Interval, Intervals};

/// Writes a journal's scalars. TensorBoard's step counts samples, so that strategies whose rounds differ can be compared.
pub struct TensorBoard {
    path: PathBuf,
    out: BufWriter<File>,
    /// The start of the run, in seconds since 1970.
    began: f64,
    intervals: Intervals,
    error: Option<io::Error>,
}

impl TensorBoard {
    /// Creates an event file in a folder, which is created if it does not exist.
    pub fn create(folder: &Path, began: SystemTime) -> Result<TensorBoard, OutputError> {
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        // TensorBoard looks for "tfevents" and sorts by time; the process id distinguishes runs that start in the same second.
        let name =
            format!("events.out.tfevents.{:010}.paceline.{}", began.as_secs(), std::process::id());
        let path = folder.join(name);
        let file = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
        let file =
            file.map_err(|source| OutputError::CreateEvents { folder: folder.to_owned(), source })?;
        let mut board = TensorBoard {
            path,
            out: BufWriter::new(file),
            began: began.as_secs_f64(),
            intervals: Intervals::default(),
            error: None,
        };
        let mut version = protobuf::double(1, board.began);
        version.extend(protobuf::bytes(3, b"brain.Event:2"));
        board.write(&version);
        board.flush();
        match board.error {
            Some(source) => Err(OutputError::IncompleteEvents { path: board.path, source }),
            None => Ok(board),
        }
    }

    /// Flushes the file. An earlier write error is returned only here, because the run continues without its scalars.
    pub fn finish(mut self) -> Result<(), OutputError> {
        self.flush();
        match self.error {
            Some(source) => Err(OutputError::IncompleteEvents { path: self.path, source }),
            None => Ok(()),
        }
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
        if let Some(interval) = self.intervals.read(line) {
            let Interval { samples, loss, rate, samples_per_second, utilization, bytes_total } =
                interval;
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
            // Makes the epoch visible in TensorBoard as soon as it has ended.
            self.flush();
        }
    }
}

/// A record of the event file.
fn framed(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(event);
    record.extend(masked_checksum(event).to_le_bytes());
    record
}

/// CRC-32C, rotated and offset as in TFRecord files, because a CRC of data that contains CRCs is weak.
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

/// The protobuf field types that scalars need.
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
