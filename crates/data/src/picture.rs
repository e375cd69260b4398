//! Decodes pictures: PNG, PGM, PPM, and IDX files such as those of MNIST.

use std::io::Cursor;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use paceline_learn::Extent;

use crate::error::{DecodeError, PictureError};
use crate::folder::{read_bounded, read_file};
use crate::idx;
use crate::limits::PIXELS_MAX;
use crate::resize::{Blend, blends};

/// A decoded picture, in the size and depth of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    pub width: usize,
    pub height: usize,
    /// 1: gray, 2: gray with alpha, 3: color, 4: color with alpha.
    channels: usize,
    /// The value of a sample at full brightness.
    maximum: u16,
    /// One byte per sample, or two (big-endian) if the maximum exceeds 255; row by row, channels last.
    samples: Vec<u8>,
}

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const GZIP: &[u8] = &[0x1f, 0x8b];
const IDX: &[u8] = &[0, 0, 8];

/// Reads the picture in a file, or from an IDX file all pictures, or the first N of them. The file may be gzipped.
pub fn read(path: &Path, first: Option<usize>) -> Result<Vec<Picture>, PictureError> {
    let bytes =
        read_file(path).map_err(|source| PictureError::Read { path: path.to_owned(), source })?;
    decode(bytes, first).map_err(|problem| PictureError::Decode { path: path.to_owned(), problem })
}

fn decode(mut bytes: Vec<u8>, first: Option<usize>) -> Result<Vec<Picture>, DecodeError> {
    if bytes.starts_with(GZIP) {
        let unzipped = read_bounded(MultiGzDecoder::new(bytes.as_slice()));
        bytes = unzipped.map_err(DecodeError::Unzip)?;
    }
    match bytes.as_slice() {
        [b'P', b'5' | b'6', ..] => Ok(vec![portable(&bytes)?]),
        _ if bytes.starts_with(PNG) => Ok(vec![png(&bytes)?]),
        _ if bytes.starts_with(IDX) => idx_pictures(bytes, first),
        _ => Err(DecodeError::UnknownFormat),
    }
}

impl Picture {
    /// Returns levels from 0 to 255 in another extent: resized, converted between gray and color, and blended over
    /// white where the picture is transparent.
    pub fn levels(&self, extent: Extent) -> Vec<f32> {
        let mut levels = Vec::with_capacity(extent.len());
        let columns = blends(self.width, extent.width);
        for rows in blends(self.height, extent.height) {
            for columns in &columns {
                let color = self.blended(&rows, columns);
                match extent.channels {
                    3 => levels.extend(color),
                    1 if self.channels < 3 => levels.push(color[0]),
                    1 => levels.push(luma(color)),
                    channels => unreachable!("images have one channel or three, not {channels}"),
                }
            }
        }
        levels
    }

    /// Returns the weighted mean color of some rows and columns.
    fn blended(&self, rows: &Blend, columns: &Blend) -> [f32; 3] {
        let mut sum = [0.0; 3];
        for (row, weight) in rows.weights.iter().enumerate() {
            for (column, across) in columns.weights.iter().enumerate() {
                let color = self.color(rows.start + row, columns.start + column);
                for (sum, level) in sum.iter_mut().zip(color) {
                    *sum += weight * across * level;
                }
            }
        }
        sum
    }

    fn color(&self, row: usize, column: usize) -> [f32; 3] {
        let pixel = (row * self.width + column) * self.channels;
        let over_white = |level: f32, alpha: f32| 255.0 + (level - 255.0) * alpha / 255.0;
        let level = |channel: usize| self.level(pixel + channel);
        match self.channels {
            1 => [level(0); 3],
            2 => [over_white(level(0), level(1)); 3],
            3 => [level(0), level(1), level(2)],
            _ => [0, 1, 2].map(|channel| over_white(level(channel), level(3))),
        }
    }

    fn level(&self, at: usize) -> f32 {
        let sample = match self.maximum {
            ..=255 => u16::from(self.samples[at]),
            _ => u16::from_be_bytes([self.samples[2 * at], self.samples[2 * at + 1]]),
        };
        f32::from(sample.min(self.maximum)) * (255.0 / f32::from(self.maximum))
    }
}

/// Converts color to gray by ITU-R BT.601, as most programs do.
fn luma([red, green, blue]: [f32; 3]) -> f32 {
    0.299 * red + 0.587 * green + 0.114 * blue
}

fn check_size(width: u64, height: u64) -> Result<(), DecodeError> {
    match width.saturating_mul(height) {
        0 => Err(DecodeError::NoPixels),
        1..=PIXELS_MAX => Ok(()),
        _ => Err(DecodeError::TooLarge { width, height }),
    }
}

fn png(file: &[u8]) -> Result<Picture, DecodeError> {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(png::Transformations::EXPAND);
    let (width, height) = decoder.read_header_info()?.size();
    let (width, height) = (width.into(), height.into());
    check_size(width, height)?;
    let mut reader = decoder.read_info()?;
    let too_large = DecodeError::TooLarge { width, height };
    let bytes = reader.output_buffer_size().ok_or(too_large)?;
    let mut samples = vec![0; bytes];
    let frame = reader.next_frame(&mut samples)?;
    // An animation's first picture may be smaller than its canvas.
    samples.truncate(frame.buffer_size());
    Ok(Picture {
        width: frame.width as usize,
        height: frame.height as usize,
        channels: frame.color_type.samples(),
        maximum: if frame.bit_depth == png::BitDepth::Sixteen { u16::MAX } else { 255 },
        samples,
    })
}

/// Decodes PGM and PPM: a header in text, then samples.
fn portable(file: &[u8]) -> Result<Picture, DecodeError> {
    let channels = if file[1] == b'6' { 3 } else { 1 };
    let mut rest = &file[2..];
    let [width, height, maximum] =
        [header_number(&mut rest)?, header_number(&mut rest)?, header_number(&mut rest)?];
    check_size(width, height)?;
    let maximum = u16::try_from(maximum).ok().filter(|maximum| *maximum > 0);
    let maximum = maximum.ok_or(DecodeError::Maximum)?;
    // Exactly one blank ends the header: the first sample may have the value of a blank.
    rest.split_off_first().ok_or(DecodeError::TruncatedHeader)?;
    let (width, height) = (width as usize, height as usize);
    let len = width * height * channels * if maximum > 255 { 2 } else { 1 };
    if rest.len() < len {
        return Err(DecodeError::Truncated { expected: len, bytes: rest.len() });
    }
    Ok(Picture { width, height, channels, maximum, samples: rest[..len].to_vec() })
}

/// Removes blanks, comments and a number from the front, and returns the number.
fn header_number(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    loop {
        match rest {
            [b'#', ..] => {
                let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                *rest = &rest[end..];
            }
            [blank, ..] if blank.is_ascii_whitespace() => *rest = &rest[1..],
            _ => break,
        }
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = rest.split_at(digits);
    *rest = after;
    let number = str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    number.ok_or(DecodeError::Header)
}

/// Decodes the images of an IDX file.
fn idx_pictures(file: Vec<u8>, first: Option<usize>) -> Result<Vec<Picture>, DecodeError> {
    let images = idx::images(file)?;
    let Extent { height, width, .. } = images.extent;
    check_size(width as u64, height as u64)?;
    if images.count == 0 {
        return Err(DecodeError::NoImages);
    }
    let picture = |samples: &[u8]| Picture {
        width,
        height,
        channels: 1,
        maximum: 255,
        samples: samples.to_vec(),
    };
    let wanted = images.pixels.chunks_exact(width * height).take(first.unwrap_or(usize::MAX));
    Ok(wanted.map(picture).collect())
}

#[cfg(test)]
mod tests {
    use png::{BitDepth, ColorType};

    use super::*;

    const GRAY: Extent = Extent { height: 2, width: 2, channels: 1 };
    const COLOR: Extent = Extent { height: 1, width: 2, channels: 3 };

    fn png_of(color: ColorType, depth: BitDepth, width: u32, height: u32, data: &[u8]) -> Vec<u8> {
        let mut file = vec![];
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == ColorType::Indexed {
            encoder.set_palette(vec![255, 0, 0, 0, 0, 255]);
        }
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        file
    }

    fn levels(file: &[u8], extent: Extent) -> Vec<f32> {
        decode(file.to_vec(), None).unwrap()[0].levels(extent)
    }

    fn refused(file: &[u8]) -> String {
        decode(file.to_vec(), None).unwrap_err().to_string()
    }

    #[test]
    fn every_kind_of_png_is_decoded() {
        use BitDepth::{Eight, One, Sixteen};
        let gray = png_of(ColorType::Grayscale, Eight, 2, 2, &[0, 1, 128, 255]);
        assert_eq!(levels(&gray, GRAY), [0.0, 1.0, 128.0, 255.0]);

        let bits = png_of(ColorType::Grayscale, One, 2, 2, &[0b1000_0000, 0b0100_0000]);
        assert_eq!(levels(&bits, GRAY), [255.0, 0.0, 0.0, 255.0]);

        let fine = png_of(ColorType::Grayscale, Sixteen, 2, 2, &[0, 0, 1, 1, 128, 128, 255, 255]);
        assert_eq!(levels(&fine, GRAY), [0.0, 1.0, 128.0, 255.0]);

        let color = png_of(ColorType::Rgb, Eight, 2, 1, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(levels(&color, COLOR), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);

        let palette = png_of(ColorType::Indexed, One, 2, 1, &[0b0100_0000]);
        assert_eq!(levels(&palette, COLOR), [255.0, 0.0, 0.0, 0.0, 0.0, 255.0]);
    }

    #[test]
    fn transparent_pixels_are_blended_over_white() {
        let gray = png_of(ColorType::GrayscaleAlpha, BitDepth::Eight, 2, 1, &[7, 0, 7, 255]);
        assert_eq!(levels(&gray, COLOR), [255.0, 255.0, 255.0, 7.0, 7.0, 7.0]);

        let color = png_of(ColorType::Rgba, BitDepth::Eight, 2, 1, &[0, 0, 0, 51, 9, 8, 7, 255]);
        assert_eq!(levels(&color, COLOR), [204.0, 204.0, 204.0, 9.0, 8.0, 7.0]);
    }

    #[test]
    fn portable_maps_are_scaled_from_any_maximum() {
        assert_eq!(levels(b"P5 2 2 255 \x00\x01\x80\xff", GRAY), [0.0, 1.0, 128.0, 255.0]);
        let commented = b"P5\n# a comment\n2 # another\n2\n15\n\x00\x05\x0a\x0f";
        assert_eq!(levels(commented, GRAY), [0.0, 85.0, 170.0, 255.0]);
        assert_eq!(levels(b"P5 2 1 65535\n\x00\x00\xff\xff", COLOR)[2..4], [0.0, 255.0]);
        assert_eq!(levels(b"P6 2 1 255\n\n\x02\x03\x04\x05\x06", COLOR)[..2], [10.0, 2.0]);
    }

    #[test]
    fn color_becomes_gray_by_luma_and_pictures_are_resized() {
        let one = Extent { height: 1, width: 1, channels: 1 };
        let red = levels(b"P6 1 1 255\n\xff\x00\x00", one);
        assert!((red[0] - 76.245).abs() < 1e-3, "{red:?}");
        assert_eq!(levels(b"P5 2 2 255\n\x00\x04\x08\x0c", one), [6.0]);
    }

    #[test]
    fn an_idx_file_is_decoded_whole_or_only_its_first_pictures() {
        let file = [0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6];

        let all = decode(file.to_vec(), None).unwrap();
        let two = decode(file.to_vec(), Some(2)).unwrap();

        assert_eq!((all.len(), &all[..2]), (3, &two[..]));
        assert_eq!(all[2].levels(Extent { height: 1, width: 2, channels: 1 }), [5.0, 6.0]);
        assert_eq!(
            refused(&[&file[..7], &[0], &file[8..16]].concat()),
            "the file contains no images"
        );
    }

    #[test]
    fn a_huge_picture_is_refused_after_reading_its_header() {
        assert_eq!(
            refused(b"P5 100000 100000 255\n"),
            "100000 x 100000 pixels are too many: give a picture of at most 64 million"
        );
        assert!(refused(b"P6 18446744073709551615 2 255\n").contains("are too many"));
        // In a PNG header, width and height start at byte 16, the checksum at byte 29.
        let mut png = png_of(ColorType::Grayscale, BitDepth::Eight, 1, 1, &[0]);
        png[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        let mut crc = flate2::Crc::new();
        crc.update(&png[12..29]);
        png[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        assert!(
            refused(&png).starts_with("2147483647 x 2147483647 pixels are too many"),
            "{}",
            refused(&png)
        );
    }

    #[test]
    fn a_truncated_or_foreign_file_is_refused() {
        let png = png_of(ColorType::Rgb, BitDepth::Eight, 2, 1, &[1, 2, 3, 4, 5, 6]);
        for len in PNG.len()..png.len() - 20 {
            assert!(refused(&png[..len]).starts_with("damaged PNG file: "), "{len}");
        }
        let portable = b"P6 2 1 255\n\x01\x02\x03\x04\x05\x06";
        for len in 2..portable.len() {
            let error = decode(portable[..len].to_vec(), None).unwrap_err();
            let is_expected = matches!(
                error,
                DecodeError::Header | DecodeError::TruncatedHeader | DecodeError::Truncated { .. }
            );
            assert!(is_expected, "{len}: {error}");
        }
        assert_eq!(
            refused(b"\xff\xd8\xff\xe0JFIF"),
            "unknown picture format: give PNG, PGM (P5), PPM (P6) or IDX"
        );
        assert!(refused(b"").starts_with("unknown picture format"));
        assert_eq!(refused(b"P5 0 7 255\n"), "the picture has no pixels");
        assert!(refused(b"P5 1 1 65536\n\0").starts_with("the maximum in the header"));
        assert!(refused(&[0x1f, 0x8b, 0, 0]).starts_with("cannot be unzipped: "));
    }
}
