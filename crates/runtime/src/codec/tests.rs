//! What codecs promise.

mod sums;

use std::sync::Arc;

use super::*;
use paceline_learn::vector::norm_squared;
use proptest::prelude::*;

const CODECS: [Codec; 10] = [
    Codec::Dense,
    Codec::Half,
    Codec::Qsgd { bits: 8, bucket: 512 },
    Codec::Qsgd { bits: 8, bucket: 7 },
    Codec::Qsgd { bits: 5, bucket: 64 },
    Codec::Qsgd { bits: 4, bucket: 512 },
    Codec::Qsgd { bits: 3, bucket: 1 },
    Codec::Qsgd { bits: 2, bucket: 512 },
    Codec::TopK { fraction: 0.01 },
    Codec::TopK { fraction: 1.0 },
];
const LENGTHS: [usize; 9] = [0, 1, 2, 7, 8, 511, 512, 513, 2000];

fn noise(seed: u64, length: usize) -> Vector {
    let mut dice = Dice::keyed(&[seed]);
    (0..length).map(|_| dice.normal() as f32).collect()
}

fn encode(codec: Codec, vector: &[f32], seed: u64) -> Payload {
    codec.encode(vector.into(), vector.len(), &mut Vector::new(), &mut Dice::keyed(&[seed]))
}

fn bits_of(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|x| x.to_bits()).collect()
}

fn sum_of(parts: &[Payload]) -> Vector {
    sum(parts, 0..parts.len(), &mut Dice::keyed(&[99]))
}

/// The sum of parts that come in this order of ranks.
fn sum(parts: &[Payload], order: impl IntoIterator<Item = usize>, dice: &mut Dice) -> Vector {
    let mut adding = Adding::new(parts.len());
    order.into_iter().for_each(|rank| adding.enter(rank, std::sync::Arc::new(parts[rank].clone())));
    adding.finish(dice)
}

/// The most that one encoding moves a value of a bucket: half a unit in the last place, one level,
/// or, for what top_k leaves out, the whole value.
fn error_max(codec: Codec, bucket: &[f32]) -> f32 {
    let size = norm_squared(bucket).sqrt() as f32;
    match codec {
        Codec::Dense => 0.0,
        Codec::Half => size / 256.0,
        Codec::Qsgd { bits, .. } => size * 1.001 / f32::from((1u8 << (bits - 1)) - 1),
        Codec::TopK { .. } => size,
    }
}

/// The size of an encoded vector, by formula.
fn encoded_bytes(codec: &Codec, length: usize) -> u64 {
    let bytes = match *codec {
        Codec::Dense => 4 * length,
        Codec::Half => 2 * length,
        Codec::Qsgd { bits, bucket } => {
            4 * length.div_ceil(bucket) + quantize::packed_bytes(bits, length)
        }
        Codec::TopK { fraction } => 8 * top_k::kept(fraction, length),
    };
    bytes as u64
}

#[test]
fn bytes_are_known_before_encoding() {
    for codec in CODECS {
        for length in LENGTHS {
            let payload = encode(codec, &noise(1, length), 2);

            assert_eq!(payload.bytes(), encoded_bytes(&codec, length), "{codec:?} x {length}");
            assert_eq!(payload.len(), length);
            assert_eq!(payload.is_empty(), length == 0);
            assert_eq!(payload.decode().len(), length);
        }
    }
}

#[test]
fn bytes_are_those_of_the_table() {
    let qsgd = |bits| Codec::Qsgd { bits, bucket: 512 };
    let table: [(Codec, [u64; 4]); 6] = [
        (Codec::Dense, [0, 4, 2052, 4_000_000]),
        (Codec::Half, [0, 2, 1026, 2_000_000]),
        (qsgd(8), [0, 4 + 1, 8 + 513, 4 * 1954 + 1_000_000]),
        (qsgd(4), [0, 4 + 1, 8 + 257, 4 * 1954 + 500_000]),
        (qsgd(3), [0, 4 + 1, 8 + 193, 4 * 1954 + 375_000]),
        (Codec::TopK { fraction: 0.01 }, [0, 8, 8 * 5, 80_000]),
    ];
    for (codec, bytes) in table {
        assert_eq!([0, 1, 513, 1_000_000].map(|n| encoded_bytes(&codec, n)), bytes, "{codec:?}");
    }
}

/// Jiang and Agrawal 2020: 8-bit QSGD sends a quarter of the bytes.
#[test]
fn eight_bits_cost_a_quarter_of_dense() {
    let dense = encoded_bytes(&Codec::Dense, 1 << 20) as f64;
    let eight = encoded_bytes(&Codec::Qsgd { bits: 8, bucket: 512 }, 1 << 20) as f64;

    assert!((eight / dense / 0.25 - 1.0).abs() < 0.02);
}

/// Alistarh et al. 2017, lemma 3.1: the mean over draws is the vector. A draw's standard deviation
/// is at most half a level, so the mean of m draws has a standard error of at most norm / (2 s
/// sqrt(m)).
#[test]
fn qsgd_is_unbiased() {
    let (length, draws) = (96, 4000);
    let vector = noise(3, length);
    for bits in [2, 3, 4, 8] {
        let codec = Codec::Qsgd { bits, bucket: 64 };
        let mut mean = vec![0.0; length];

        for seed in 0..draws {
            let decoded = encode(codec, &vector, 1000 + seed).decode();
            mean.iter_mut().zip(decoded).for_each(|(m, x)| *m += f64::from(x) / draws as f64);
        }

        for (i, bucket) in vector.chunks(64).enumerate() {
            let error = f64::from(error_max(codec, bucket)) / 2.0 / f64::from(draws as u32).sqrt();
            for (x, mean) in bucket.iter().zip(&mean[64 * i..]) {
                assert!((f64::from(*x) - mean).abs() < 5.0 * error, "{bits} bits: {x} {mean}");
            }
        }
    }
}

/// Encoding a sum anew keeps its mean as well: within five standard errors, as measured.
#[test]
fn a_quantized_sum_is_unbiased() {
    let (length, draws, n) = (40, 4000, 3);
    let codec = Codec::Qsgd { bits: 4, bucket: 16 };
    let vectors: Vec<Vector> = (0..n).map(|rank| noise(20 + rank, length)).collect();
    let (mut sums, mut squares) = (vec![0.0; length], vec![0.0; length]);

    for draw in 0..draws {
        let parts: Vec<Payload> =
            (0..n).map(|rank| encode(codec, &vectors[rank as usize], n * draw + rank)).collect();
        let total = sum(&parts, 0..3, &mut Dice::keyed(&[77, draw]));
        for (i, x) in total.into_iter().enumerate() {
            sums[i] += f64::from(x);
            squares[i] += f64::from(x) * f64::from(x);
        }
    }

    for i in 0..length {
        let exact: f64 = vectors.iter().map(|vector| f64::from(vector[i])).sum();
        let mean = sums[i] / draws as f64;
        let error = ((squares[i] / draws as f64 - mean * mean) / draws as f64).sqrt();
        assert!((exact - mean).abs() < 5.0 * error, "{exact} {mean} +- {error}");
    }
}

#[test]
fn no_value_moves_by_more_than_the_codec_allows() {
    for codec in CODECS {
        let bucket = if let Codec::Qsgd { bucket, .. } = codec { bucket } else { 1 };
        let vector = noise(5, 2000);

        let decoded = encode(codec, &vector, 6).decode();

        for (exact, decoded) in vector.chunks(bucket).zip(decoded.chunks(bucket)) {
            for (x, y) in exact.iter().zip(decoded) {
                assert!((x - y).abs() <= error_max(codec, exact), "{codec:?}: {x} {y}");
            }
        }
    }
}

#[test]
fn what_a_codec_can_hold_comes_back_as_it_was() {
    // Of a bucket with one value, QSGD keeps all: its size is the norm, its level the highest.
    let vector = vec![1.5, -2.0, 0.0, 0.25, -0.0, 3.0];
    let codecs = [
        Codec::Dense,
        Codec::Half,
        Codec::Qsgd { bits: 2, bucket: 1 },
        Codec::TopK { fraction: 1.0 },
    ];
    for codec in codecs {
        let payload = encode(codec, &vector, 7);

        assert_eq!(payload.decode(), vector, "{codec:?}");
        assert_eq!(payload.into_vector(), vector, "{codec:?}");
    }
}

#[test]
fn dense_moves_the_vector_and_keeps_its_bits() {
    let vector = Vector::from([-0.0, f32::NAN, f32::MIN_POSITIVE / 2.0, f32::INFINITY]);
    let (bits, address) = (bits_of(&vector), vector.as_ptr());

    let payload = Codec::Dense.encode(vector, 4, &mut Vector::new(), &mut Dice::keyed(&[0]));

    assert_eq!(bits_of(&payload.decode()), bits);
    let back = payload.into_vector();
    assert_eq!((bits_of(&back), back.as_ptr()), (bits, address));
}

#[test]
fn dense_parts_that_are_read_once_give_the_bits_of_a_sum_in_rank_order() {
    for members in 1..=6 {
        let parts: Vec<Vector> = (0..members).map(|seed| noise(seed, 9000)).collect();
        let mut sum = Vector::filled(7.0, 9000);
        add_dense(&mut sum, &parts.iter().map(Vector::as_slice).collect::<Vec<_>>());

        // Whether members keep their parts, and in which order they come, does not matter.
        for (keeps, turns) in [(false, 0), (true, 0), (true, 1), (true, members as usize - 1)] {
            let payloads = parts.iter().map(|part| Arc::new(Payload::dense(part.clone())));
            let payloads: Vec<Arc<Payload>> = payloads.collect();
            let kept = keeps.then(|| payloads[0].clone());
            let mut adding = Adding::new(parts.len());
            let mut in_turn: Vec<(usize, Arc<Payload>)> =
                payloads.into_iter().enumerate().collect();
            in_turn.rotate_left(turns.min(parts.len() - 1));
            in_turn.into_iter().for_each(|(rank, part)| adding.enter(rank, part));
            let total = adding.finish(&mut Dice::keyed(&[0]));
            assert!(bits_of(&sum) == bits_of(&total), "{members} parts, kept: {keeps}, {turns}");
            let is_untouched = |it: Arc<Payload>| bits_of(&it.decode()) == bits_of(&parts[0]);
            assert!(kept.is_none_or(is_untouched));
        }
    }
}

#[test]
fn half_rounds_to_the_nearest_and_ties_to_even() {
    let table: [(u32, u32); 10] = [
        (0x3f80_0000, 0x3f80_0000),
        (0x3f80_7fff, 0x3f80_0000),
        (0x3f80_8000, 0x3f80_0000),
        (0x3f80_8001, 0x3f81_0000),
        (0x3f81_8000, 0x3f82_0000),
        (0xbf81_8000, 0xbf82_0000),
        (0x8000_0000, 0x8000_0000),
        (0x7f7f_ffff, 0x7f80_0000), // the largest float is nearer to infinity
        (0xff80_0000, 0xff80_0000),
        (0x7f80_0001, 0x7fc0_0000), // a NaN whose upper half alone would be infinity
    ];
    for (from, to) in table {
        let decoded = encode(Codec::Half, &[f32::from_bits(from)], 0).decode();
        assert_eq!(bits_of(&decoded), [to], "{from:x}");
    }
    assert!(encode(Codec::Half, &[f32::from_bits(0xffff_ffff)], 0).decode()[0].is_nan());
}

#[test]
fn divergence_is_seen_through_every_codec() {
    for codec in CODECS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            let mut vector = noise(8, 600);
            vector[3] = bad;
            vector[4] = bad;
            let parts = [encode(codec, &vector, 9), encode(codec, &vector, 10)];

            let seen = sum_of(&parts).iter().any(|x| !x.is_finite());

            assert!(seen, "{codec:?} {bad}");
        }
    }
}

#[test]
fn tiny_and_zero_vectors_survive_quantizing() {
    let codec = Codec::Qsgd { bits: 8, bucket: 4 };
    let decoded = encode(codec, &[0.0, 0.0, 0.0, 0.0, 1e-42, 0.0], 11).decode();

    assert_eq!(decoded[..4], [0.0; 4]);
    assert!(decoded[4] >= 0.0 && decoded[4] <= 1.1e-42);
    assert_eq!(decoded[5], 0.0);
}

/// Stich et al. 2018: what top_k leaves out waits in the residual, and nothing is ever lost.
#[test]
fn top_k_sends_everything_in_time() {
    let (length, rounds) = (50, 40);
    let codec = Codec::TopK { fraction: 0.1 };
    let (mut residual, mut dice) = (Vector::new(), Dice::keyed(&[12]));
    let (mut given, mut sent) = (vec![0.0; length], vec![0.0; length]);

    for _ in 0..rounds {
        // Small integers, so that sums are exact in any order.
        let vector: Vector = (0..length).map(|_| dice.below(201) as f32 - 100.0).collect();
        add(&mut given, &vector);
        codec.encode(vector, length, &mut residual, &mut dice).add_to(&mut sent);

        let both: Vector = sent.iter().zip(&residual).map(|(sent, kept)| sent + kept).collect();
        assert_eq!(both, given);
    }

    // With nothing new to send, ten more rounds of five values empty the residual.
    for _ in 0..10 {
        codec.encode(Vector::zeros(length), length, &mut residual, &mut dice).add_to(&mut sent);
    }
    assert_eq!(sent, given);
    assert_eq!(residual, vec![0.0; length]);
}

#[test]
fn top_k_takes_the_largest_and_of_equals_the_first() {
    let mut residual = Vector::new();
    let vector = Vector::from([1.0, -3.0, 2.0, -2.0, 2.0, 0.5]);

    let payload =
        Codec::TopK { fraction: 0.5 }.encode(vector, 6, &mut residual, &mut Dice::keyed(&[0]));

    let values = vec![-3.0, 2.0, -2.0];
    assert_eq!(payload.learned, Encoded::Sparse { length: 6, indices: vec![1, 2, 3], values });
    assert_eq!(residual, [1.0, 0.0, 0.0, 0.0, 2.0, 0.5]);
}

#[test]
fn only_top_k_touches_the_residual() {
    for codec in CODECS {
        let mut residual = Vector::filled(7.0, 3);
        codec.encode(Vector::filled(1.0, 3), 3, &mut residual, &mut Dice::keyed(&[0]));
        assert_eq!(residual == [7.0; 3], !matches!(codec, Codec::TopK { .. }), "{codec:?}");
    }
}

#[test]
fn levels_are_packed_lowest_bits_first() {
    // One value per bucket sits at the highest level: 3 bits hold sign and 3, that is 011 or 111.
    let payload = encode(Codec::Qsgd { bits: 3, bucket: 1 }, &[1.0, -2.0, 4.0], 0);

    let (norms, levels) = (vec![1.0, 2.0, 4.0], vec![0b1111_1011, 0b0]);
    assert_eq!(
        payload.learned,
        Encoded::Quantized { bits: 3, bucket: 1, length: 3, norms, levels }
    );
}

#[test]
fn only_sensible_codecs_pass_the_door() {
    CODECS.iter().for_each(|codec| assert_eq!(codec.check(), Ok(())));
    let refused = [
        (Codec::Qsgd { bits: 1, bucket: 512 }, "between 2 and 8"),
        (Codec::Qsgd { bits: 9, bucket: 512 }, "between 2 and 8"),
        (Codec::Qsgd { bits: 8, bucket: 0 }, "set `bucket`"),
        (Codec::TopK { fraction: 0.0 }, "set `fraction`"),
        (Codec::TopK { fraction: 1.1 }, "set `fraction`"),
        (Codec::TopK { fraction: f64::NAN }, "set `fraction`"),
    ];
    for (codec, advice) in refused {
        assert!(codec.check().unwrap_err().to_string().contains(advice), "{codec:?}");
    }
}

#[test]
fn a_job_names_its_codec() {
    let named = |text| serde_json::from_str::<Codec>(text).unwrap();
    assert_eq!(named(r#"{"kind": "dense"}"#), Codec::default());
    assert_eq!(named(r#"{"kind": "qsgd", "bits": 4}"#), Codec::Qsgd { bits: 4, bucket: 512 });
    assert_eq!(named(r#"{"kind": "top_k", "fraction": 0.1}"#), Codec::TopK { fraction: 0.1 });
}

#[test]
fn payloads_of_strangers_are_checked() {
    let quantized = |bits, bucket, length, norms: usize, bytes: usize| Encoded::Quantized {
        bits,
        bucket,
        length,
        norms: vec![1.0; norms],
        levels: vec![0; bytes],
    };
    let sparse = |length, indices: &[u32], values: usize| Encoded::Sparse {
        length,
        indices: indices.to_vec(),
        values: vec![1.0; values],
    };
    let good = [
        quantized(3, 4, 9, 3, 4),
        quantized(8, 512, 0, 0, 0),
        sparse(3, &[], 0),
        sparse(3, &[0, 2], 2),
    ];
    let bad = [
        quantized(1, 4, 9, 3, 2),
        quantized(9, 4, 9, 3, 11),
        quantized(3, 0, 9, 3, 4),
        quantized(3, 4, 9, 2, 4),
        quantized(3, 4, 9, 3, 5),
        quantized(8, 512, u32::MAX, 0, 0),
        sparse(3, &[0, 3], 2),
        sparse(3, &[2, 0], 2),
        sparse(3, &[1, 1], 2),
        sparse(3, &[1], 2),
    ];
    good.iter().for_each(|encoded| assert_eq!(encoded.check(), Ok(()), "{encoded:?}"));
    bad.iter().for_each(|encoded| assert!(encoded.check().is_err(), "{encoded:?}"));
}

#[test]
fn a_received_payload_has_the_lengths_of_the_job() {
    for codec in CODECS {
        let part = |length, params| {
            codec.encode(noise(1, length), params, &mut Vector::new(), &mut Dice::keyed(&[0]))
        };

        assert_eq!(part(9, 7).check(7, 2), Ok(()), "{codec:?}");
        assert_eq!(part(0, 0).check(7, 2), Ok(()), "a member may have nothing to add");
        let wrong = [part(8, 6), part(8, 7), part(10, 7), part(2, 0), part(7, 7)];
        for payload in wrong {
            let error = payload.check(7, 2).expect_err("its lengths are others");
            assert!(error.to_string().contains("a replica of this job 9 with 2"), "{error}");
        }
    }
    let endless = Encoded::Sparse { length: u32::MAX, indices: vec![], values: vec![] };
    let endless = Payload { learned: endless, buffers: Vector::new() };
    assert!(endless.check(7, 2).is_err(), "it is refused before memory is reserved for it");
    let torn = Encoded::Sparse { length: 7, indices: vec![1], values: vec![] };
    assert!(Payload { learned: torn, buffers: Vector::filled(1.0, 2) }.check(7, 2).is_err());
}

proptest! {
    /// Whatever the floats are, even NaN and infinity, encoding and summing neither panics nor
    /// changes the length, and what we encode passes our own check.
    #[test]
    fn any_vector_can_be_encoded_and_summed(
        patterns in prop::collection::vec(any::<u32>(), 0..40),
        bits in 2u8..=8,
        bucket in 1usize..20,
        fraction in 0.001f64..=1.0,
        n in 1usize..5,
    ) {
        let vector: Vector = patterns.iter().map(|bits| f32::from_bits(*bits)).collect();
        let codecs =
            [Codec::Dense, Codec::Half, Codec::Qsgd { bits, bucket }, Codec::TopK { fraction }];
        for codec in codecs {
            let part = encode(codec, &vector, 15);
            prop_assert_eq!(part.check(vector.len(), 0), Ok(()));
            prop_assert_eq!(part.bytes(), encoded_bytes(&codec, vector.len()));
            prop_assert_eq!(sum_of(&vec![part; n]).len(), vector.len());
        }
    }

    /// Buffers behind the learned values change nothing about these, and are themselves summed as plain floats.
    #[test]
    fn learned_values_and_buffers_are_summed_as_if_alone(
        params in 1usize..6000,
        // Also more than are added at a time.
        buffers in prop_oneof![0usize..60, 4000usize..9000],
        bits in 2u8..=8,
        bucket in 1usize..600,
        fraction in 0.001f64..=1.0,
        n in 1usize..5,
        idle in 0usize..5,
    ) {
        let codecs =
            [Codec::Dense, Codec::Half, Codec::Qsgd { bits, bucket }, Codec::TopK { fraction }];
        for codec in codecs {
            let (mut whole, mut learned, mut plain) = (vec![], vec![], vec![]);
            for rank in 0..n {
                let seed = rank as u64;
                let (values, statistics) = (noise(seed, params), noise(seed + 100, buffers));
                let (values, both) = match rank == idle {
                    true => (Vector::new(), Vector::new()),
                    false => (values.clone(), [values, statistics.clone()].concat().into()),
                };
                let statistics = if rank == idle { Vector::new() } else { statistics };
                // Error feedback concerns what is learned only.
                let waiting = noise(seed + 200, params);
                let mut residuals = [waiting.clone(), waiting];
                if values.is_empty() {
                    residuals = [Vector::new(), Vector::new()];
                }
                let dice = || Dice::keyed(&[seed]);
                let together = codec.encode(both.clone(), params, &mut residuals[0], &mut dice());
                let alone = codec.encode(values, params, &mut residuals[1], &mut dice());

                prop_assert_eq!(&residuals[0], &residuals[1]);
                prop_assert_eq!(together.bytes(), alone.bytes() + 4 * statistics.len() as u64);
                prop_assert_eq!(together.len(), both.len());
                prop_assert_eq!(together.check(params, buffers), Ok(()));
                let expected = [alone.decode(), statistics.clone()].concat();
                prop_assert_eq!(bits_of(&together.decode()), bits_of(&expected));
                prop_assert_eq!(bits_of(&together.clone().into_vector()), bits_of(&expected));
                whole.push(together);
                learned.push(alone);
                plain.push(Payload::dense(statistics));
            }
            let expected = [sum_of(&learned), sum_of(&plain)].concat();
            prop_assert_eq!(bits_of(&sum_of(&whole)), bits_of(&expected));
            let late = sum(&whole, (0..n).rev(), &mut Dice::keyed(&[99]));
            prop_assert_eq!(bits_of(&late), bits_of(&expected));
        }
    }
}
