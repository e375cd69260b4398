//! Frames arrive as they were sent, however their bytes are cut, and lengths are refused before memory is taken.

use super::*;

const LIMITS: Limits = Limits { head: 1000, body: 1 << 20 };

#[test]
fn heads_that_are_nested_too_deeply_are_refused() {
    // A list of one list of one list, and so on; MessagePack writes 0x91 for a list of one.
    let nested = |depth| [vec![0x91; depth], vec![0xc0]].concat();
    let is_read = |depth| read_head::<serde::de::IgnoredAny>(&nested(depth)).is_ok();

    assert!(is_read(DEPTH_MAX / 2) && !is_read(DEPTH_MAX + 1));
}

fn frame(message: &str, floats: &[f32], bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    let segments = [Slice::Floats(floats), Slice::Bytes(bytes)];
    write_frame(&mut out, &message, &segments).expect("memory can be written");
    out
}

#[test]
fn frames_arrive_whole_however_their_bytes_are_cut() {
    let long: Vec<f32> = (0..50_000).map(|i| i as f32).collect();
    let mut stream = frame("one", &[1.5, f32::NAN], b"abc");
    stream.extend(frame("two", &[], b""));
    stream.extend(frame("three", &long, b""));
    for step in [1, 3, 7, 1000, 1 << 20] {
        let (mut decoder, mut got) = (Decoder::new(LIMITS, Pool::default()), vec![]);
        for mut part in stream.chunks(step) {
            while let Some(arrived) = decoder.take(&mut part).expect("it is well formed") {
                got.push((arrived.message::<String>().expect("text"), arrived.segments));
            }
            assert!(part.is_empty());
        }
        let names: Vec<&str> = got.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["one", "two", "three"], "{step} bytes at a time");
        assert_eq!(got[0].1[1], Segment::Bytes(b"abc".to_vec()));
        assert_eq!(got[2].1[0], Segment::Floats(long.as_slice().into()));
    }
    let mut reader = FrameReader::new(stream.as_slice(), LIMITS);
    let mut count = 0;
    while reader.read_frame().expect("it is well formed").is_some() {
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn heads_of_words_arrive_however_their_bytes_are_cut() {
    let message = std::array::from_fn(|i| u64::MAX >> i);
    let (floats, bytes) = ([1.5, -2.5], b"abc");
    let segments = [Slice::Floats(&floats), Slice::Bytes(bytes), Slice::Floats(&[])];
    let mut stream = encode_words(&message, &segments, 0).expect("there is room");
    assert!(encode_words(&message, &[Slice::Bytes(b""); WORDS_SEGMENTS + 1], 0).is_none());
    assert_eq!(stream.len() % ALIGNED, 0);
    segments.iter().for_each(|it| stream.extend_from_slice(bytes_of(*it)));
    stream.extend(frame("another", &[], b""));
    for step in [1, 3, 64, 1000] {
        let (mut decoder, mut got) = (Decoder::new(LIMITS, Pool::default()), vec![]);
        for mut part in stream.chunks(step) {
            while let Some(arrived) = decoder.take(&mut part).expect("it is well formed") {
                got.push(arrived);
            }
        }
        assert_eq!((got.len(), got[0].words(), got[1].words()), (2, Some(message), None));
        assert!(got[0].message::<String>().is_err());
        assert_eq!(got[1].message::<String>().expect("text"), "another");
        let sent = segments.iter().map(|it| Segment::from(*it));
        assert_eq!(got[0].segments, sent.collect::<Vec<_>>());
    }
}

#[test]
fn behind_a_long_frame_only_a_head_is_read_ahead() {
    let long = frame("long", &[0.5; AHEAD / 4], b"");
    let head = long.len() - AHEAD;
    let mut decoder = Decoder::new(LIMITS, Pool::default());
    assert_eq!(decoder.ahead(), AHEAD);
    for (bytes, ahead) in [(long, head), (frame("short", &[1.0], b""), AHEAD)] {
        let arrived = decoder.take(&mut bytes.as_slice()).expect("it is well formed");
        assert!(arrived.is_some());
        assert_eq!(decoder.ahead(), ahead);
    }
}

#[test]
fn lengths_are_refused_before_anything_is_allocated() {
    let lie = [&MAGIC[..], &u32::MAX.to_le_bytes()].concat();
    let huge = encode(&"m", &[]);
    let kinds = rmp_serde::to_vec(&vec![Kind::Floats(u64::MAX / 2)]).expect("plain data");
    let mut body = huge[..4].to_vec();
    body.extend((kinds.len() as u32).to_le_bytes());
    body.extend(kinds);
    // MessagePack writes 0xdd and four bytes of a length before a list.
    let many = (1u32 << 16) + 1;
    let segments = [&[0xdd][..], &many.to_be_bytes(), &vec![0; many as usize]].concat();
    let head = (segments.len() as u32).to_le_bytes();
    let crowd = [&MAGIC[..], &head, &segments].concat();
    let mut words = encode_words(&[0; WORDS], &[], 0).expect("there is room");
    let longer = [&MAGIC_WORDS[..], &(WORDS_BYTES as u32 + 8).to_le_bytes()].concat();
    let huge = [Slice::Floats(&[])];
    let mut large = encode_words(&[0; WORDS], &huge, 0).expect("there is room");
    large[HEADER + 8..HEADER + 16].copy_from_slice(&(u64::MAX >> 2).to_le_bytes());
    words[HEADER] = 4;
    for (bytes, sentence) in [
        (words, "4 segments behind"),
        (longer, "a head of 192 bytes"),
        (large, "a body of"),
        (crowd, "a head that cannot be read: invalid length 65537"),
        (lie, "a head of 4294967295 bytes"),
        (body, "a body of"),
        (b"GET / HTTP/1.1\r\n".to_vec(), "not a frame"),
    ] {
        let limits = Limits { head: bytes.len().max(LIMITS.head), ..LIMITS };
        let error = Decoder::new(limits, Pool::default())
            .take(&mut bytes.as_slice())
            .err()
            .expect("refused");
        assert!(error.to_string().starts_with(sentence), "{error}");
    }
}

#[test]
fn bytes_that_are_not_a_frame_never_panic() {
    for seed in 0..2000u64 {
        let mut dice = paceline_learn::Dice::keyed(&[seed]);
        let mut bytes = frame("message", &[1.0, 2.0], b"xyz");
        for _ in 0..=dice.below(4) {
            let at = dice.below(bytes.len() as u64) as usize;
            bytes[at] = dice.below(256) as u8;
        }
        let mut decoder = Decoder::new(LIMITS, Pool::default());
        let mut rest = bytes.as_slice();
        while let Ok(Some(arrived)) = decoder.take(&mut rest) {
            let _ = arrived.message::<String>();
        }
    }
}

#[test]
fn long_numbers_are_read_to_where_they_belong_if_the_room_has_their_length() {
    let long: Vec<f32> = (0..5000).map(|i| i as f32).collect();
    for (room, is_used) in [(5000, true), (4999, false)] {
        let message: [u64; WORDS] = std::array::from_fn(|i| i as u64);
        let segments = [Slice::Floats(&long), Slice::Floats(&long)];
        let mut stream = encode_words(&message, &segments, 0).expect("there is room");
        segments.iter().for_each(|it| stream.extend_from_slice(bytes_of(*it)));
        let place = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
        let places = place.clone();
        let mut decoder = Decoder::new(LIMITS, Pool::default());
        decoder.set_rooms(Box::new(move |words, len| {
            assert_eq!((*words, len), (message, 5000));
            let room = Vector::zeros(room);
            places.lock().expect("nobody panics").push(room.as_ptr() as usize);
            Some(room)
        }));
        let arrived = decoder.take(&mut stream.as_slice()).expect("it is well formed");
        let segments = arrived.expect("it is whole").segments;
        let floats = super::floats(segments).expect("both are floats");
        assert!(floats.iter().all(|it| *it == long), "room for {room}");
        let asked = place.lock().expect("nobody panics").clone();
        assert_eq!(asked.len(), 1, "only the first numbers of a frame have a place");
        // What was not used is free, and may be where the numbers are now.
        assert!(!is_used || asked[0] == floats[0].as_ptr() as usize);
    }
}
