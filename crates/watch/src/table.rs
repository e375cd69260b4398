//! Plain-text tables and human-readable numbers.

/// A table with a header, a rule and rows; each column is as wide as its widest cell.
///
/// A column is left-aligned unless its entry in `align_right` is true.
pub fn table(header: &[&str], rows: &[Vec<String>], align_right: &[bool]) -> String {
    let header: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
    let columns = rows.iter().map(Vec::len).fold(header.len(), usize::max);
    let width = |column: usize| {
        let cells = std::iter::once(&header).chain(rows).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(column, width): (usize, &usize)| {
            let text = row.get(column).map_or("", String::as_str);
            let right = align_right.get(column).copied().unwrap_or(false);
            if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
        };
        let cells: Vec<String> = widths.iter().enumerate().map(cell).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let body: String = rows.iter().map(line).collect();
    line(&header) + &line(&rule) + &body
}

/// A size, as in "1.2 MB"; a kB is 1,000 bytes.
pub fn bytes(n: u64) -> String {
    if n < 1000 {
        return format!("{n} B");
    }
    let mut size = n as f64 / 1e3;
    for unit in ["kB", "MB", "GB", "TB", "PB"] {
        // A size that would be rounded to 1000.0 is written in the next unit.
        if size < 999.95 {
            return format!("{size:.1} {unit}");
        }
        size /= 1e3;
    }
    format!("{size:.1} EB")
}

/// A duration, as in "1.24 s", "13 ms" or "2 min 5 s".
pub fn duration(seconds: f64) -> String {
    // Above each bound the value would be rounded to 1 of the next unit.
    match seconds {
        _ if !seconds.is_finite() => "-".to_owned(),
        _ if seconds < 0.0 => format!("-{}", duration(-seconds)),
        0.0 => "0 s".to_owned(),
        ..0.999_5e-6 => format!("{} ns", short(seconds * 1e9)),
        ..0.999_5e-3 => format!("{} µs", short(seconds * 1e6)),
        ..0.999_5 => format!("{} ms", short(seconds * 1e3)),
        ..9.995 => format!("{seconds:.2} s"),
        ..59.95 => format!("{seconds:.1} s"),
        ..3599.5 => in_two(seconds.round() as u64, (60, "min"), "s"),
        _ => in_two((seconds / 60.0).round() as u64, (60, "h"), "min"),
    }
}

/// A count, as in "12,345".
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with all its digits, as in "0.05"; very large and very small ones as in "1e300".
pub fn number(x: f64) -> String {
    let is_plain = x == 0.0 || !x.is_finite() || (1e-6..1e15).contains(&x.abs());
    if is_plain { x.to_string() } else { format!("{x:e}") }
}

fn short(x: f64) -> String {
    if x < 9.95 { format!("{x:.1}") } else { format!("{x:.0}") }
}

fn in_two(n: u64, (size, large): (u64, &str), small: &str) -> String {
    match (n / size, n % size) {
        (many, 0) => format!("{many} {large}"),
        (many, rest) => format!("{many} {large} {rest} {small}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [
            vec!["ssgd".to_owned(), "1.24 s".to_owned(), "läuft".to_owned()],
            vec!["periodic".to_owned(), "13 µs".to_owned()],
        ];

        let text = table(&["strategy", "time", "note"], &rows, &[false, true]);

        let expected = "\
strategy    time  note
--------  ------  -----
ssgd      1.24 s  läuft
periodic   13 µs
";
        assert_eq!(text, expected);
    }

    #[test]
    fn sizes_never_show_a_thousand_of_a_unit() {
        let table = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (1_234_567, "1.2 MB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (u64::MAX, "18.4 EB"),
        ];

        for (n, text) in table {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn durations_never_show_a_whole_next_unit() {
        let table = [
            (0.0, "0 s"),
            (3e-9, "3.0 ns"),
            (1.26e-5, "13 µs"),
            (0.0013, "1.3 ms"),
            (0.0131, "13 ms"),
            (0.99949, "999 ms"),
            (0.9996, "1.00 s"),
            (1.24, "1.24 s"),
            (9.996, "10.0 s"),
            (59.96, "1 min"),
            (125.0, "2 min 5 s"),
            (119.7, "2 min"),
            (3599.6, "1 h"),
            (7500.0, "2 h 5 min"),
            (-1.5, "-1.50 s"),
            (f64::INFINITY, "-"),
        ];

        for (seconds, text) in table {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn extreme_numbers_are_written_with_an_exponent() {
        let table =
            [(0.0, "0"), (0.05, "0.05"), (1e-7, "1e-7"), (1234.5, "1234.5"), (-2e300, "-2e300")];

        for (x, text) in table {
            assert_eq!(number(x), text);
        }
        assert_eq!(number(f64::NAN), "NaN");
    }

    #[test]
    fn counts_have_commas_between_thousands() {
        let table = [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345")];

        for (n, text) in table {
            assert_eq!(count(n), text);
        }
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
