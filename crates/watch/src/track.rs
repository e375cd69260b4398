//! A quantity over time in bounded memory: bins with sum and extremes, which double in length when time exceeds them.

use std::time::Duration;

/// Drawings have no more pixels than this.
const BINS_MAX: usize = 1024;

/// The initial length of a bin in nanoseconds: a microsecond.
const BIN_AT_FIRST: u64 = 1000;

#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// The length of a bin, in nanoseconds.
    bin: u64,
    bins: Vec<Bin>,
}

/// The values of one bin; if `count` is 0, the other fields are meaningless.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bin {
    pub count: u64,
    pub sum: f64,
    pub low: f64,
    pub high: f64,
    pub last: f64,
}

impl Default for Track {
    fn default() -> Track {
        Track { bin: BIN_AT_FIRST, bins: vec![] }
    }
}

impl Track {
    pub fn add(&mut self, at: Duration, value: f64) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        while at / self.bin >= BINS_MAX as u64 {
            self.double();
        }
        let place = (at / self.bin) as usize;
        if self.bins.len() <= place {
            self.bins.resize(place + 1, Bin::default());
        }
        let new = Bin { count: 1, sum: value, low: value, high: value, last: value };
        self.bins[place] = self.bins[place].and(new);
    }

    /// The bins that have values, with their start and end in seconds.
    pub fn bins(&self) -> impl Iterator<Item = (f64, f64, Bin)> {
        let seconds = self.seconds();
        let there = self.bins.iter().enumerate().filter(|(_, bin)| bin.count > 0);
        there.map(move |(i, bin)| (i as f64 * seconds, (i + 1) as f64 * seconds, *bin))
    }

    /// A bin, which may be empty.
    pub fn bin(&self, place: usize) -> Bin {
        self.bins.get(place).copied().unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.bins.len()
    }

    /// The length of a bin in seconds.
    pub fn seconds(&self) -> f64 {
        self.bin as f64 / 1e9
    }

    /// A copy whose bins are at least this long.
    pub fn coarsened(&self, seconds: f64) -> Track {
        let mut track = self.clone();
        while track.seconds() < seconds {
            track.double();
        }
        track
    }

    fn double(&mut self) {
        self.bin = self.bin.saturating_mul(2);
        let both = |pair: &[Bin]| pair.iter().fold(Bin::default(), |a, b| a.and(*b));
        self.bins = self.bins.chunks(2).map(both).collect();
    }
}

impl Bin {
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Merges this bin with a later one.
    fn and(self, later: Bin) -> Bin {
        match (self.count, later.count) {
            (0, _) => later,
            (_, 0) => self,
            _ => Bin {
                count: self.count + later.count,
                sum: self.sum + later.sum,
                low: self.low.min(later.low),
                high: self.high.max(later.high),
                last: later.last,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_is_kept_among_a_million_values() {
        let mut track = Track::default();

        for i in 0..1_000_000u64 {
            let value = if i == 123_456 { 99.0 } else { (i % 3) as f64 };
            track.add(Duration::from_micros(7 * i), value);
        }

        assert!((BINS_MAX / 2..=BINS_MAX).contains(&track.len()), "{}", track.len());
        let highest = track.bins().map(|(_, _, bin)| bin.high).fold(0.0, f64::max);
        let (count, sum) =
            track.bins().fold((0, 0.0), |(n, s), (_, _, b)| (n + b.count, s + b.sum));
        assert_eq!((highest, count), (99.0, 1_000_000));
        // The values 0, 1 and 2 in turn; the spike replaces a 0.
        assert_eq!(sum, 999_999.0 + 99.0);
    }

    #[test]
    fn two_tracks_can_be_coarsened_to_the_same_bin_length() {
        let (mut short, mut long) = (Track::default(), Track::default());
        short.add(Duration::from_micros(3), 1.0);
        (0..5000).for_each(|i| long.add(Duration::from_micros(i), 1.0));

        let short = short.coarsened(long.seconds());

        assert_eq!(short.seconds(), long.seconds());
        assert_eq!((short.len(), short.bin(0).count, short.bin(7).count), (1, 1, 0));
    }
}
