//! Axes: map values to positions and choose the ticks.

/// More tick labels than this would overlap below a horizontal axis.
const TICKS_MAX: usize = 7;

#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub title: String,
    from: f64,
    to: f64,
    logarithmic: bool,
    /// Ticks at these values instead of round ones.
    marked: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub value: f64,
    pub text: String,
}

impl Axis {
    /// A linear axis; extended if `from` and `to` are nearly equal.
    pub fn linear(title: impl Into<String>, from: f64, to: f64) -> Axis {
        let to = if to - from > 1e-100 { to } else { from + from.abs().max(1.0) };
        Axis { title: title.into(), from, to, logarithmic: false, marked: vec![] }
    }

    /// A logarithmic axis; `from` and `to` must be above 0.
    pub fn logarithmic(title: impl Into<String>, from: f64, to: f64) -> Axis {
        assert!(from > 0.0 && to >= from, "a logarithmic axis cannot go from {from} to {to}");
        let (from, to) = if to > 1.02 * from { (from, to) } else { (from / 1.5, to * 1.5) };
        Axis { title: title.into(), from, to, logarithmic: true, marked: vec![] }
    }

    /// The same axis with ticks at the powers of two among the data, if most of these are some, such as numbers of
    /// workers.
    pub fn at_powers_of_two(self, values: impl Iterator<Item = f64>) -> Axis {
        let mut marked: Vec<f64> = values.collect();
        marked.sort_by(f64::total_cmp);
        marked.dedup();
        let all = marked.len();
        marked.retain(|value| *value >= 1.0 && value.log2().fract() == 0.0);
        if marked.len() < 2 || marked.len() > TICKS_MAX + 2 || 2 * marked.len() <= all {
            return self;
        }
        Axis { marked, ..self }
    }

    /// The position of a value: 0 at the start of the axis, 1 at its end.
    pub fn place(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }

    pub fn ticks(&self) -> Vec<Tick> {
        if !self.marked.is_empty() {
            let tick = |value: &f64| Tick { value: *value, text: value.to_string() };
            return self.marked.iter().map(tick).collect();
        }
        let decades = (self.to / self.from).log10();
        // A range of less than a factor of two holds too few round numbers.
        if self.logarithmic && decades > 0.3 {
            self.decade_ticks(decades)
        } else {
            self.even_ticks()
        }
    }

    fn even_ticks(&self) -> Vec<Tick> {
        let rough = (self.to - self.from) / TICKS_MAX as f64;
        let exponent = rough.log10().floor() as i32;
        let steps = [(1, exponent), (2, exponent), (5, exponent), (1, exponent + 1)];
        let length = |(digit, exponent): (i32, i32)| f64::from(digit) * 10f64.powi(exponent);
        let fits = |step: &(i32, i32)| length(*step) >= rough;
        let step = steps.into_iter().find(fits).unwrap_or((1, exponent + 1));
        // Multiples of the step, so that rounding errors do not accumulate.
        let first = (self.from / length(step) - 1e-9).ceil() as i64;
        let last = (self.to / length(step) + 1e-9).floor() as i64;
        let tick = |i: i64| Tick {
            value: i as f64 * length(step),
            text: decimal(i as f64 * length(step), step.1),
        };
        (first..=last).map(tick).collect()
    }

    fn decade_ticks(&self, decades: f64) -> Vec<Tick> {
        let digits: &[i32] = match decades {
            ..0.8 => &[1, 2, 3, 4, 5, 6, 8],
            ..2.2 => &[1, 2, 5],
            ..3.2 => &[1, 3],
            _ => &[1],
        };
        let every = (decades / TICKS_MAX as f64).ceil().max(1.0) as i32;
        let (low, high) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let exponents = (low..=high).filter(|exponent| exponent.rem_euclid(every) == 0);
        let all = exponents.flat_map(|exponent| {
            digits.iter().map(move |digit| {
                let value = f64::from(*digit) * 10f64.powi(exponent);
                Tick { value, text: decimal(value, exponent) }
            })
        });
        let inside = |tick: &Tick| (-1e-9..=1.0 + 1e-9).contains(&self.place(tick.value));
        all.filter(inside).collect()
    }
}

/// Formats a value that is a multiple of `10^exponent`.
fn decimal(value: f64, exponent: i32) -> String {
    match exponent {
        ..-4 | 6.. if value != 0.0 => {
            // Enough digits to distinguish neighboring ticks.
            let digits = (value.abs().log10() + 1e-9).floor() as i32 - exponent;
            format!("{value:.*e}", digits.max(0) as usize)
        }
        _ => format!("{value:.*}", (-exponent).max(0) as usize),
    }
}

/// The unit in which a duration is a handy number: its name and its length in seconds.
pub(crate) fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        ..2e-3 => ("µs", 1e-6),
        ..2.0 => ("ms", 1e-3),
        ..300.0 => ("s", 1.0),
        ..18_000.0 => ("min", 60.0),
        _ => ("h", 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| tick.text).collect()
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        let table: [(Axis, &[&str]); 9] = [
            (Axis::linear("", 0.0, 10.0), &["0", "2", "4", "6", "8", "10"]),
            (
                Axis::linear("", 0.0, 0.31),
                &["0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30"],
            ),
            (Axis::linear("", 93.1, 98.7), &["94", "95", "96", "97", "98"]),
            (Axis::linear("", 5.0, 5.0), &["5", "6", "7", "8", "9", "10"]),
            (Axis::linear("", 0.0, 1.3e7), &["0", "2e6", "4e6", "6e6", "8e6", "1.0e7", "1.2e7"]),
            (Axis::logarithmic("", 0.04, 2.4), &["0.05", "0.1", "0.2", "0.5", "1", "2"]),
            (Axis::logarithmic("", 20.0, 5e3), &["30", "100", "300", "1000", "3000"]),
            (
                Axis::logarithmic("", 0.9e-6, 2.0),
                &["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"],
            ),
            (Axis::logarithmic("", 2.1, 2.5), &["2.1", "2.2", "2.3", "2.4", "2.5"]),
        ];

        for (axis, expected) in table {
            assert_eq!(texts(&axis), expected, "{axis:?}");
        }
    }

    #[test]
    fn powers_of_two_get_ticks_of_their_own() {
        let axis = |values: &[f64]| {
            Axis::logarithmic("", 4.0, 32.0).at_powers_of_two(values.iter().copied())
        };

        assert_eq!(texts(&axis(&[8.0, 4.0, 4.0, 32.0, 16.0, 20.0])), ["4", "8", "16", "32"]);
        for others in [&[4.0, 6.0, 9.0, 32.0][..], &[8.0]] {
            assert_eq!(texts(&axis(others)), ["5", "10", "20"]);
        }
    }

    #[test]
    fn equal_factors_are_equal_distances_on_a_logarithmic_axis() {
        let axis = Axis::logarithmic("", 0.01, 100.0);

        for (value, place) in [(0.01, 0.0), (0.1, 0.25), (1.0, 0.5), (100.0, 1.0)] {
            assert!((axis.place(value) - place).abs() < 1e-12, "{value}");
        }
    }
}
