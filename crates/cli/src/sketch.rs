//! Draws an image in characters, for terminals.

/// From dark to bright.
const SHADES: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// Draws two rows per line, because characters are about twice as high as wide; the darkest level is blank.
pub fn sketch(image: &[f32], width: usize, channels: usize) -> String {
    let (darkest, brightest) = image
        .iter()
        .fold((f32::MAX, f32::MIN), |(low, high), level| (low.min(*level), high.max(*level)));
    let range = (brightest - darkest).max(f32::MIN_POSITIVE);
    let rows: Vec<&[f32]> = image.chunks_exact(width * channels).collect();
    let mut lines = String::new();
    for pair in rows.chunks(2) {
        let mut line = String::new();
        for column in 0..width {
            let pixels = pair.iter().flat_map(|row| &row[column * channels..][..channels]);
            let mean = pixels.sum::<f32>() / (pair.len() * channels) as f32;
            let shade = (mean - darkest) / range * SHADES.len() as f32;
            line.push(SHADES[(shade as usize).min(SHADES.len() - 1)]);
        }
        lines += line.trim_end();
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bright_pixels_are_dense_characters_and_two_rows_make_a_line() {
        let picture = sketch(&[9.0, 0.0, 9.0, 0.0, 0.0, 9.0], 2, 1);

        assert_eq!(picture, "@\n @\n");
    }

    #[test]
    fn a_uniform_image_is_blank() {
        assert_eq!(sketch(&[4.0; 12], 2, 3), "\n");
    }
}
