use super::*;
use crate::testing::{line, read_all, scratch, two_workers};

/// A decoded event: time, step, and scalars with their tags.
type Event = (f64, u64, Vec<(String, f32)>);

/// CRC-32C computed from the highest bit, unlike the implementation under test.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX.reverse_bits();
    for byte in bytes {
        crc ^= u32::from(byte.reverse_bits()) << 24;
        for _ in 0..8 {
            crc = if crc >> 31 == 1 { crc << 1 ^ 0x1edc_6f41 } else { crc << 1 };
        }
    }
    !crc.reverse_bits()
}

fn assert_sum(bytes: &[u8], sum: &[u8]) {
    let crc = crc32c(bytes);
    let masked = crc.rotate_left(17).wrapping_add(0xa282_ead8);
    assert_eq!(sum, masked.to_le_bytes());
}

/// The events of a file; panics if the framing or a checksum is wrong.
fn events(mut file: &[u8]) -> Vec<Event> {
    let mut events = vec![];
    while !file.is_empty() {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let event = &file[12..12 + length];
        assert_sum(&file[..8], &file[8..12]);
        assert_sum(event, &file[12 + length..16 + length]);
        events.push(decoded(event));
        file = &file[16 + length..];
    }
    events
}

fn decoded(event: &[u8]) -> Event {
    let (mut time, mut step, mut scalars) = (0.0, 0, vec![]);
    for (field, content) in fields(event) {
        match (field, content) {
            (1, Content::Fixed(bytes)) => time = f64::from_le_bytes(bytes.try_into().unwrap()),
            (2, Content::Number(number)) => step = number,
            (3, Content::Bytes(version)) => assert_eq!(version, b"brain.Event:2"),
            (5, Content::Bytes(summary)) => {
                scalars = fields(summary)
                    .into_iter()
                    .map(|(field, value)| scalar(field, value))
                    .collect();
            }
            (field, _) => panic!("unexpected field {field} in an event"),
        }
    }
    (time, step, scalars)
}

fn scalar(field: u64, value: Content) -> (String, f32) {
    let Content::Bytes(value) = value else { panic!("a value must be a message") };
    assert_eq!(field, 1);
    let fields = fields(value);
    let [(1, Content::Bytes(tag)), (2, Content::Fixed(number))] = fields[..] else {
        panic!("a scalar must be a tag and a number")
    };
    (String::from_utf8(tag.to_vec()).unwrap(), f32::from_le_bytes(number.try_into().unwrap()))
}

#[derive(Clone, Copy)]
enum Content<'a> {
    Number(u64),
    Fixed(&'a [u8]),
    Bytes(&'a [u8]),
}

fn fields(mut message: &[u8]) -> Vec<(u64, Content<'_>)> {
    let mut fields = vec![];
    while !message.is_empty() {
        let key = varint(&mut message);
        let content = match key & 7 {
            0 => Content::Number(varint(&mut message)),
            1 => Content::Fixed(message.split_off(..8).unwrap()),
            2 => {
                let length = varint(&mut message) as usize;
                Content::Bytes(message.split_off(..length).unwrap())
            }
            5 => Content::Fixed(message.split_off(..4).unwrap()),
            kind => panic!("unexpected wire type {kind}"),
        };
        fields.push((key >> 3, content));
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = *bytes.split_off_first().unwrap();
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

fn written(name: &str, lines: &[Line]) -> Vec<Event> {
    let folder = scratch(name);
    let began = UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    let mut board = TensorBoard::create(&folder.join("new/folders"), began).unwrap();
    read_all(&mut board, lines);
    let path = board.path.clone();
    board.finish().unwrap();

    let events = events(&std::fs::read(path).unwrap());
    std::fs::remove_dir_all(folder).unwrap();
    events
}

#[test]
fn the_checksum_matches_the_published_check_value() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_sum(b"123456789", &masked_checksum(b"123456789").to_le_bytes());
}

#[test]
fn scalars_are_decoded_as_written() {
    let events = written("scalars", &two_workers(10));

    let tags = |event: &Event| event.2.iter().map(|(tag, _)| tag.clone()).collect::<Vec<_>>();
    assert_eq!(events[0], (1_700_000_000.0, 0, vec![]));
    let intervals: Vec<&Event> = events.iter().filter(|event| event.2.len() == 5).collect();
    let scores: Vec<&Event> = events.iter().filter(|event| event.2.len() == 2).collect();
    assert_eq!((events.len(), intervals.len(), scores.len()), (13, 10, 2));
    assert_eq!(
        tags(intervals[0]),
        [
            "train/loss",
            "train/lr",
            "perf/samples_per_second",
            "perf/utilization",
            "comm/bytes_total"
        ]
    );
    assert_eq!(tags(scores[0]), ["eval/loss", "eval/accuracy"]);
    // Round 4 takes 10 ms: 20 of 100 samples, 4 and 9 ms of compute, loss 1/4; the second worker's bytes are recorded one line later.
    let values: Vec<f32> = intervals[3].2.iter().map(|(_, value)| *value).collect();
    assert_eq!((intervals[3].0, intervals[3].1), (1_700_000_000.0 + 0.04, 80));
    assert_eq!(values, [0.25, 0.25, 2000.0, 0.65, 700.0]);
    assert_eq!((scores[1].1, scores[1].2[1].1), (200, 0.75));
}

#[test]
fn step_numbers_may_take_several_bytes() {
    let samples = 123_456_789_012;
    let score = Record::Scored { samples, loss: f64::NAN, accuracy: 0.5 };

    let events = written("many-bytes", &[line(5, score)]);

    assert_eq!(events[1].1, samples);
    assert!(events[1].2[0].1.is_nan());
}

#[test]
fn a_file_in_place_of_the_folder_is_an_error() {
    let path = scratch("no-folder");
    std::fs::write(&path, "").unwrap();

    let error = TensorBoard::create(&path, UNIX_EPOCH).err().expect("the path is a file");

    std::fs::remove_file(&path).unwrap();
    assert!(matches!(error, OutputError::CreateEvents { .. }), "{error}");
    assert!(error.to_string().starts_with("cannot write TensorBoard's events to "), "{error}");
}
