//! The IDX format of MNIST and its kin: a header of big-endian lengths, then bytes.

use paceline_learn::Extent;

/// Gray images of one extent, one after another.
#[derive(Debug, PartialEq)]
pub struct GrayImages {
    pub extent: Extent,
    pub count: usize,
    pub pixels: Vec<u8>,
}

const HEADER_IMAGES: usize = 16;
const HEADER_LABELS: usize = 8;

pub fn images(mut file: Vec<u8>) -> Result<GrayImages, String> {
    let [count, height, width] = lengths::<3>(&file, "images")?;
    check_len(&file, HEADER_IMAGES, &[count, height, width], "images")?;
    file.drain(..HEADER_IMAGES);
    Ok(GrayImages { extent: Extent { height, width, channels: 1 }, count, pixels: file })
}

pub fn labels(mut file: Vec<u8>) -> Result<Vec<u8>, String> {
    let [count] = lengths::<1>(&file, "labels")?;
    check_len(&file, HEADER_LABELS, &[count], "labels")?;
    file.drain(..HEADER_LABELS);
    Ok(file)
}

/// The lengths that the header tells: two zeros, 8 for bytes, how many lengths, and these.
fn lengths<const N: usize>(file: &[u8], of: &str) -> Result<[usize; N], String> {
    let header = file.get(..4 + 4 * N).ok_or_else(|| {
        format!("is cut short: it has {} bytes, its header alone {}", file.len(), 4 + 4 * N)
    })?;
    if header[..4] != [0, 0, 8, N as u8] {
        return Err(format!("is no IDX file of {of}: it begins with {:02x?}", &header[..4]));
    }
    let mut lengths = [0; N];
    for (length, bytes) in lengths.iter_mut().zip(header[4..].chunks_exact(4)) {
        *length = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    }
    Ok(lengths)
}

fn check_len(file: &[u8], header: usize, lengths: &[usize], of: &str) -> Result<(), String> {
    let told: u128 = lengths.iter().map(|length| *length as u128).product();
    let expected = header as u128 + told;
    if file.len() as u128 == expected {
        return Ok(());
    }
    let what = if (file.len() as u128) < expected { "is cut short" } else { "is too long" };
    Err(format!("{what}: {} {of} make {expected} bytes, it has {}", lengths[0], file.len()))
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
    fn images_and_labels_are_what_the_header_tells() {
        let images = images(IMAGES.to_vec()).unwrap();

        assert_eq!(images.extent, Extent { height: 2, width: 3, channels: 1 });
        assert_eq!((images.count, images.pixels), (2, (1..=12).collect()));
        assert_eq!(labels(LABELS.to_vec()), Ok(vec![7, 9]));
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        for len in 0..IMAGES.len() {
            let said = images(IMAGES[..len].to_vec()).unwrap_err();
            assert!(said.starts_with("is cut short"), "{len}: {said}");
        }
        for len in 0..LABELS.len() {
            let said = labels(LABELS[..len].to_vec()).unwrap_err();
            assert!(said.starts_with("is cut short"), "{len}: {said}");
        }
    }

    #[test]
    fn a_file_of_another_kind_or_length_is_refused() {
        let said = images([LABELS, LABELS].concat()).unwrap_err();
        assert_eq!(said, "is no IDX file of images: it begins with [00, 00, 08, 01]");
        let said = labels(b"<!DOCTYPE html>".to_vec()).unwrap_err();
        assert_eq!(said, "is no IDX file of labels: it begins with [3c, 21, 44, 4f]");
        let said = labels([&LABELS[..], &[0]].concat()).unwrap_err();
        assert_eq!(said, "is too long: 2 labels make 10 bytes, it has 11");
    }

    #[test]
    fn lengths_that_no_memory_could_hold_are_refused() {
        let mut huge = IMAGES;
        huge[4..16].fill(0xff);

        let said = images(huge.to_vec()).unwrap_err();

        assert!(
            said.contains("4294967295 images make 79228162458924105385300197391 bytes"),
            "{said}"
        );
    }
}
