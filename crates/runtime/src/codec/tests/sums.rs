//! What sums promise: the order of additions, and bits that all clusters agree on.

use super::*;

#[test]
fn a_sum_is_near_the_sum_of_what_was_decoded() {
    for codec in CODECS {
        for n in [2, 3, 5] {
            for length in LENGTHS {
                let parts: Vec<Payload> =
                    (0..n).map(|rank| encode(codec, &noise(rank, length), rank)).collect();
                let mut exact = vec![0.0; length];
                parts.iter().for_each(|part| part.add_to(&mut exact));

                let total = sum_of(&parts);

                // Only what is encoded anew is rounded again.
                for j in 0..n as usize {
                    let range = chunk(length, n as usize, j);
                    let bucket = if let Codec::Qsgd { bucket, .. } = codec { bucket } else { 1 };
                    let pairs =
                        exact[range.clone()].chunks(bucket).zip(total[range].chunks(bucket));
                    for (exact, total) in pairs {
                        let lossy = !matches!(codec, Codec::TopK { .. } | Codec::Dense);
                        let error = if lossy { error_max(codec, exact) + 1e-5 } else { 0.0 };
                        for (x, y) in exact.iter().zip(total) {
                            assert!((x - y).abs() <= error, "{codec:?} {n} {length}: {x} {y}");
                        }
                    }
                }
            }
        }
    }
}

/// The order of additions is a promise: clusters that differ in it would differ in bits.
#[test]
fn parts_are_added_in_rank_order_whatever_order_they_come_in() {
    // 1e8 + 1 is 1e8 in f32, so the 1 survives only where it comes last.
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for codec in [Codec::Dense, Codec::Half, Codec::TopK { fraction: 1.0 }] {
        let parts = |values: [f32; 3]| values.map(|x| encode(codec, &[x; 3], 0));
        for order in orders {
            let dice = || Dice::keyed(&[99]);
            assert_eq!(sum(&parts([1e8, 1.0, -1e8]), order, &mut dice()), [0.0; 3], "{codec:?}");
            assert_eq!(sum(&parts([1e8, -1e8, 1.0]), order, &mut dice()), [1.0; 3], "{codec:?}");
        }
    }
}

#[test]
fn who_has_nothing_to_add_is_not_waited_for_and_does_not_count() {
    for codec in CODECS {
        let part = |seed| encode(codec, &noise(seed, 513), seed);
        let nothing = || encode(codec, &[], 0);
        let with = [nothing(), part(1), nothing(), part(2), nothing()];
        let without = sum_of(&[part(1), part(2)]);
        let mut totals = vec![];
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
            let total = sum(&with, order, &mut Dice::keyed(&[99]));
            match codec {
                // Quantized sums are encoded again in a chunk per member, with dice of its own.
                Codec::Qsgd { .. } => assert_eq!(total.len(), without.len()),
                _ => assert_eq!(bits_of(&total), bits_of(&without), "{codec:?}"),
            }
            totals.push(bits_of(&total));
        }
        assert_eq!(totals[0], totals[1], "{codec:?}");
        let alone = [nothing(), part(1), nothing()];
        assert_eq!(
            bits_of(&sum_of(&alone)),
            bits_of(&part(1).decode()),
            "nothing is rounded again"
        );
        assert!(sum_of(&[nothing(), nothing()]).is_empty());
    }
}

/// Members of a cluster add one chunk each: together they must have the bits of the whole sum.
#[test]
fn chunks_that_are_summed_and_encoded_apart_are_the_whole_sum() {
    let codecs = [
        Codec::Half,
        Codec::Qsgd { bits: 3, bucket: 7 },
        Codec::Qsgd { bits: 4, bucket: 64 },
        Codec::Qsgd { bits: 8, bucket: 1000 },
    ];
    for (codec, n, idle) in codecs
        .into_iter()
        .flat_map(|codec| [(2, 9), (3, 1), (5, 9), (4, 0)].map(|(n, idle)| (codec, n, idle)))
    {
        let (params, buffers) = (1003, 11);
        let part = |rank: usize| match rank == idle {
            true => encode(codec, &[], 0),
            false => {
                let vector = noise(rank as u64, params + buffers);
                codec.encode(vector, params, &mut Vector::new(), &mut Dice::keyed(&[rank as u64]))
            }
        };
        let parts: Vec<Payload> = (0..n).map(part).collect();
        let (mut learned, mut plain) = (Vector::new(), Vector::new());
        for j in 0..n {
            let mut adding = Adding::new(n);
            for (rank, part) in parts.iter().enumerate() {
                let chunk = part.chunk(n, j);
                let lengths = if part.is_empty() {
                    (0, 0)
                } else {
                    part.chunk_lengths((params, buffers), n, j)
                };
                assert_eq!(chunk.check(lengths.0, lengths.1), Ok(()), "{codec:?}, {j} of {n}");
                adding.enter(rank, Arc::new(chunk));
            }
            let sum =
                adding.finish_chunk(&mut Dice::keyed(&[99]), params, j).expect("some had parts");
            let values = sum.decode();
            learned.extend_from_slice(&values[..sum.learned.len()]);
            plain.extend_from_slice(&values[sum.learned.len()..]);
        }
        learned.extend_from_slice(&plain);
        assert_eq!(bits_of(&learned), bits_of(&sum_of(&parts)), "{codec:?}, {n} members");
    }
}

/// What came before those of lower rank is added in blocks, and nothing is lost between them.
#[test]
fn long_vectors_are_added_whole() {
    for codec in CODECS {
        let parts: Vec<Payload> =
            (0..4).map(|seed| encode(codec, &noise(seed, 10_001), seed)).collect();
        let late = sum(&parts, [3, 1, 2, 0], &mut Dice::keyed(&[99]));
        assert_eq!(bits_of(&late), bits_of(&sum_of(&parts)), "{codec:?}");
    }
}

/// Golden bits, computed by an independent program: dice, rounding and order are part of the
/// promise that all clusters agree.
#[test]
fn sums_keep_their_bits() {
    let golden: [(Codec, [u32; 5]); 4] = [
        (Codec::Dense, [0x3f15_92e1, 0xbfce_7ef5, 0x3fcc_1da9, 0xbf11_1dde, 0x3fca_1fb1]),
        (Codec::Half, [0x3f16_0000, 0xbfce_0000, 0x3fcc_0000, 0xbf11_0000, 0x3fca_0000]),
        (
            Codec::Qsgd { bits: 8, bucket: 2 },
            [0x3f16_3bcb, 0xbfd0_32d0, 0x3fcb_9f69, 0xbf11_327c, 0x3fc8_e994],
        ),
        (
            Codec::Qsgd { bits: 3, bucket: 4 },
            [0x3f6d_9da6, 0xbffd_4595, 0x3fa8_d90e, 0xbf95_968b, 0x3f95_968b],
        ),
    ];
    for (codec, bits) in golden {
        // No normal draws here: logarithms may differ in their last bit from machine to machine.
        let vector = |rank| {
            let mut dice = Dice::keyed(&[rank]);
            (0..5).map(|_| dice.between(-1.0, 1.0) as f32).collect::<Vector>()
        };
        let parts: Vec<Payload> = (0..3).map(|rank| encode(codec, &vector(rank), rank)).collect();
        let total = bits_of(&sum_of(&parts));
        assert_eq!(total, bits, "{codec:?}: {total:#x?}");
    }
}

#[test]
fn a_sum_over_one_member_adds_no_rounding() {
    for codec in CODECS {
        let payload = encode(codec, &noise(13, 513), 14);
        let total = sum_of(std::slice::from_ref(&payload));
        assert_eq!(bits_of(&total), bits_of(&payload.decode()), "{codec:?}");
    }
}

#[test]
#[should_panic(expected = "all parts of a sum have the same codec and length")]
fn a_sum_of_unlike_parts_is_a_bug() {
    sum_of(&[encode(Codec::Dense, &[1.0], 0), encode(Codec::Half, &[1.0], 0)]);
}
