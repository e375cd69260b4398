//! The IDX format of MNIST and similar data sets: a header of big-endian lengths, then bytes.

use std::cmp::Ordering;

use paceline_learn::Extent;

use crate::error::FormatError;

/// Gray images of the same extent, one after another.
#[derive(Debug, PartialEq)]
pub struct GrayImages {
    pub extent: Extent,
    pub count: usize,
    pub pixels: Vec<u8>,
}

const HEADER_IMAGES: usize = 16;
const HEADER_LABELS: usize = 8;

pub fn images(mut file: Vec<u8>) -> Result<GrayImages, FormatError> {
    let [count, height, width] = lengths::<3>(&file, "images")?;
    check_len(&file, HEADER_IMAGES, &[count, height, width], "images")?;
    file.drain(..HEADER_IMAGES);
    Ok(GrayImages { extent: Extent { height, width, channels: 1 }, count, pixels: file })
}

pub fn labels(mut file: Vec<u8>) -> Result<Vec<u8>, FormatError> {
    let [count] = lengths::<1>(&file, "labels")?;
    check_len(&file, HEADER_LABELS, &[count], "labels")?;
    file.drain(..HEADER_LABELS);
    Ok(file)
}

/// Returns the lengths in the header, which consists of two zeros, 8 for bytes, the number of lengths, and the lengths.
fn lengths<const N: usize>(file: &[u8], of: &'static str) -> Result<[usize; N], FormatError> {
    let header = file
        .get(..4 + 4 * N)
        .ok_or(FormatError::IdxHeader { header: 4 + 4 * N, bytes: file.len() })?;
    let magic = [header[0], header[1], header[2], header[3]];
    if magic != [0, 0, 8, N as u8] {
        return Err(FormatError::NotIdx { of, magic });
    }
    let mut lengths = [0; N];
    for (length, bytes) in lengths.iter_mut().zip(header[4..].chunks_exact(4)) {
        *length = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    }
    Ok(lengths)
}

fn check_len(
    file: &[u8],
    header: usize,
    lengths: &[usize],
    of: &'static str,
) -> Result<(), FormatError> {
    let body: u128 = lengths.iter().map(|length| *length as u128).product();
    let expected = header as u128 + body;
    let (count, bytes) = (lengths[0], file.len());
    match (bytes as u128).cmp(&expected) {
        Ordering::Equal => Ok(()),
        Ordering::Less => Err(FormatError::IdxTruncated { of, count, expected, bytes }),
        Ordering::Greater => Err(FormatError::IdxTooLong { of, count, expected, bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: [u8; 28] = [
        0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, // two images of 2 x 3
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    ];
    const LABELS: [u8; 10] = [0, 0, 8, 1, 0, 0, 0, 2, 7, 9];

    #[test]
    fn images_and_labels_match_the_header() {
        let images = images(IMAGES.to_vec()).unwrap();

        assert_eq!(images.extent, Extent { height: 2, width: 3, channels: 1 });
        assert_eq!((images.count, images.pixels), (2, (1..=12).collect()));
        assert_eq!(labels(LABELS.to_vec()), Ok(vec![7, 9]));
    }

    #[test]
    fn a_file_truncated_anywhere_is_refused() {
        for len in 0..IMAGES.len() {
            let error = images(IMAGES[..len].to_vec()).unwrap_err().to_string();
            assert!(error.starts_with("truncated: "), "{len}: {error}");
        }
        for len in 0..LABELS.len() {
            let error = labels(LABELS[..len].to_vec()).unwrap_err().to_string();
            assert!(error.starts_with("truncated: "), "{len}: {error}");
        }
    }

    #[test]
    fn a_file_of_another_kind_or_length_is_refused() {
        let error = images([LABELS, LABELS].concat()).unwrap_err().to_string();
        assert_eq!(error, "not an IDX file of images: it begins with the bytes [00, 00, 08, 01]");
        let error = labels(b"<!DOCTYPE html>".to_vec()).unwrap_err().to_string();
        assert_eq!(error, "not an IDX file of labels: it begins with the bytes [3c, 21, 44, 4f]");
        let error = labels([&LABELS[..], &[0]].concat()).unwrap_err().to_string();
        assert_eq!(error, "too long: 2 labels need 10 bytes, the file has 11");
    }

    #[test]
    fn lengths_that_exceed_any_memory_are_refused() {
        let mut huge = IMAGES;
        huge[4..16].fill(0xff);

        let error = images(huge.to_vec()).unwrap_err().to_string();

        assert!(
            error.contains("4294967295 images need 79228162458924105385300197391 bytes"),
            "{error}"
        );
    }
}
