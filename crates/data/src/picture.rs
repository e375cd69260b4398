//! Pictures in files: PNG, PGM and PPM, and the IDX files of MNIST and its kin.

use std::fs::File;
use std::io::Cursor;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use paceline_learn::Extent;

use crate::folder::bounded;
use crate::idx;
use crate::resize::{Blend, blends};

/// A picture as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    pub width: usize,
    pub height: usize,
    /// Gray, gray with alpha, color, color with alpha: one to four.
    channels: usize,
    /// What a full sample is.
    maximum: u16,
    /// A byte each, or two, the higher first, where the maximum needs them; row by row, channels last.
    samples: Vec<u8>,
}

/// Larger pictures are refused before they fill the memory.
const PIXELS_MAX: u64 = 64_000_000;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const GZIP: &[u8] = &[0x1f, 0x8b];
const IDX: &[u8] = &[0, 0, 8];

/// The picture in a file; of an IDX file, which may be gzipped, all or so many of the first.
pub fn read(path: &Path, first: Option<usize>) -> Result<Vec<Picture>, String> {
    let bytes = File::open(path).map_err(|error| error.to_string()).and_then(bounded);
    let bytes =
        bytes.map_err(|why| format!("cannot read the picture {}: {why}", path.display()))?;
    decode(bytes, first).map_err(|why| format!("{} {why}", path.display()))
}

fn decode(mut bytes: Vec<u8>, first: Option<usize>) -> Result<Vec<Picture>, String> {
    if bytes.starts_with(GZIP) {
        let unzipped = bounded(MultiGzDecoder::new(bytes.as_slice()));
        bytes = unzipped.map_err(|why| format!("cannot be unzipped: {why}"))?;
    }
    match bytes.as_slice() {
        [b'P', b'5' | b'6', ..] => Ok(vec![portable(&bytes)?]),
        _ if bytes.starts_with(PNG) => Ok(vec![png(&bytes)?]),
        _ if bytes.starts_with(IDX) => many(bytes, first),
        _ => Err("is no picture of a known kind: give PNG, PGM (P5), PPM (P6) or IDX".into()),
    }
}

impl Picture {
    /// Levels from 0 to 255 in another extent: resized, gray made color or color gray, over white where it is
    /// transparent.
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

    /// The mean color of some rows and columns.
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

/// How bright a color is (ITU-R BT.601), as most programs turn color gray.
fn luma([red, green, blue]: [f32; 3]) -> f32 {
    0.299 * red + 0.587 * green + 0.114 * blue
}

fn check_size(width: u64, height: u64) -> Result<(), String> {
    match width.saturating_mul(height) {
        0 => Err("has no pixels".into()),
        1..=PIXELS_MAX => Ok(()),
        _ => Err(format!(
            "is too large: it has {width} x {height} pixels, give one of at most {} million",
            PIXELS_MAX / 1_000_000
        )),
    }
}

fn png(file: &[u8]) -> Result<Picture, String> {
    let broken = |error: png::DecodingError| format!("is a broken PNG file: {error}");
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(png::Transformations::EXPAND);
    let (width, height) = decoder.read_header_info().map_err(broken)?.size();
    check_size(width.into(), height.into())?;
    let mut reader = decoder.read_info().map_err(broken)?;
    let bytes = reader.output_buffer_size().ok_or("is too large")?;
    let mut samples = vec![0; bytes];
    let frame = reader.next_frame(&mut samples).map_err(broken)?;
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

/// PGM and PPM: a header in words, then samples.
fn portable(file: &[u8]) -> Result<Picture, String> {
    let channels = if file[1] == b'6' { 3 } else { 1 };
    let mut rest = &file[2..];
    let [width, height, maximum] =
        [header_number(&mut rest)?, header_number(&mut rest)?, header_number(&mut rest)?];
    check_size(width, height)?;
    let maximum = u16::try_from(maximum).ok().filter(|maximum| *maximum > 0);
    let maximum = maximum.ok_or("says that its brightest is not from 1 to 65535")?;
    // One blank ends the header; the next byte may look like another.
    rest.split_off_first().ok_or("is cut short in its header")?;
    let (width, height) = (width as usize, height as usize);
    let len = width * height * channels * if maximum > 255 { 2 } else { 1 };
    if rest.len() < len {
        return Err(format!("is cut short: its pixels need {len} bytes, it has {}", rest.len()));
    }
    Ok(Picture { width, height, channels, maximum, samples: rest[..len].to_vec() })
}

/// Takes blanks, comments and a number off the front.
fn header_number(rest: &mut &[u8]) -> Result<u64, String> {
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
    number.ok_or_else(|| "has no width, height and brightest level in its header".to_owned())
}

fn many(file: Vec<u8>, first: Option<usize>) -> Result<Vec<Picture>, String> {
    let images = idx::images(file)?;
    let Extent { height, width, .. } = images.extent;
    check_size(width as u64, height as u64)?;
    if images.count == 0 {
        return Err("holds no images".into());
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
        decode(file.to_vec(), None).unwrap_err()
    }

    #[test]
    fn every_kind_of_png_gives_its_levels() {
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
    fn what_is_transparent_is_seen_over_white() {
        let gray = png_of(ColorType::GrayscaleAlpha, BitDepth::Eight, 2, 1, &[7, 0, 7, 255]);
        assert_eq!(levels(&gray, COLOR), [255.0, 255.0, 255.0, 7.0, 7.0, 7.0]);

        let color = png_of(ColorType::Rgba, BitDepth::Eight, 2, 1, &[0, 0, 0, 51, 9, 8, 7, 255]);
        assert_eq!(levels(&color, COLOR), [204.0, 204.0, 204.0, 9.0, 8.0, 7.0]);
    }

    #[test]
    fn portable_maps_give_their_levels_whatever_their_brightest() {
        assert_eq!(levels(b"P5 2 2 255 \x00\x01\x80\xff", GRAY), [0.0, 1.0, 128.0, 255.0]);
        let commented = b"P5\n# a comment\n2 # another\n2\n15\n\x00\x05\x0a\x0f";
        assert_eq!(levels(commented, GRAY), [0.0, 85.0, 170.0, 255.0]);
        assert_eq!(levels(b"P5 2 1 65535\n\x00\x00\xff\xff", COLOR)[2..4], [0.0, 255.0]);
        assert_eq!(levels(b"P6 2 1 255\n\n\x02\x03\x04\x05\x06", COLOR)[..2], [10.0, 2.0]);
    }

    #[test]
    fn color_turns_gray_by_how_bright_it_is_and_pictures_are_resized() {
        let one = Extent { height: 1, width: 1, channels: 1 };
        let red = levels(b"P6 1 1 255\n\xff\x00\x00", one);
        assert!((red[0] - 76.245).abs() < 1e-3, "{red:?}");
        assert_eq!(levels(b"P5 2 2 255\n\x00\x04\x08\x0c", one), [6.0]);
    }

    #[test]
    fn an_idx_file_holds_many_and_the_first_can_be_had_alone() {
        let file = [0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6];

        let all = decode(file.to_vec(), None).unwrap();
        let two = decode(file.to_vec(), Some(2)).unwrap();

        assert_eq!((all.len(), &all[..2]), (3, &two[..]));
        assert_eq!(all[2].levels(Extent { height: 1, width: 2, channels: 1 }), [5.0, 6.0]);
        assert_eq!(refused(&[&file[..7], &[0], &file[8..16]].concat()), "holds no images");
    }

    #[test]
    fn a_huge_picture_is_refused_by_its_header() {
        assert_eq!(
            refused(b"P5 100000 100000 255\n"),
            "is too large: it has 100000 x 100000 pixels, give one of at most 64 million"
        );
        assert!(refused(b"P6 18446744073709551615 2 255\n").starts_with("is too large"));
        // The header of a PNG: its lengths stand from byte 16 on, its checksum at byte 29.
        let mut png = png_of(ColorType::Grayscale, BitDepth::Eight, 1, 1, &[0]);
        png[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        let mut crc = flate2::Crc::new();
        crc.update(&png[12..29]);
        png[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        assert!(
            refused(&png).starts_with("is too large: it has 2147483647 x"),
            "{}",
            refused(&png)
        );
    }

    #[test]
    fn a_file_that_is_cut_or_foreign_is_refused_in_a_sentence() {
        let png = png_of(ColorType::Rgb, BitDepth::Eight, 2, 1, &[1, 2, 3, 4, 5, 6]);
        for len in PNG.len()..png.len() - 20 {
            assert!(refused(&png[..len]).starts_with("is a broken PNG file: "), "{len}");
        }
        let portable = b"P6 2 1 255\n\x01\x02\x03\x04\x05\x06";
        for len in 2..portable.len() {
            let said = refused(&portable[..len]);
            assert!(said.starts_with("is cut short") || said.starts_with("has no"), "{said}");
        }
        assert_eq!(
            refused(b"\xff\xd8\xff\xe0JFIF"),
            "is no picture of a known kind: give PNG, PGM (P5), PPM (P6) or IDX"
        );
        assert!(refused(b"").starts_with("is no picture"));
        assert_eq!(refused(b"P5 0 7 255\n"), "has no pixels");
        assert!(refused(b"P5 1 1 65536\n\0").starts_with("says that its brightest"));
        assert!(refused(&[0x1f, 0x8b, 0, 0]).starts_with("cannot be unzipped"));
    }
}
