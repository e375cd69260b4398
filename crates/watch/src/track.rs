//! A quantity over time in bounded memory: bins that double in length, each with its extremes.

use std::time::Duration;

/// So many bins at most; a drawing has no more pixels.
const BINS_MAX: usize = 1024;

/// Bins are a microsecond long at first, in nanoseconds.
const BIN_AT_FIRST: u64 = 1000;

#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// The length of a bin, in nanoseconds.
    bin: u64,
    bins: Vec<Bin>,
}

/// What fell into one bin; the numbers mean nothing where nothing fell.
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

    /// Where something fell: from when to when, in seconds, and what.
    pub fn bins(&self) -> impl Iterator<Item = (f64, f64, Bin)> {
        let seconds = self.seconds();
        let there = self.bins.iter().enumerate().filter(|(_, bin)| bin.count > 0);
        there.map(move |(i, bin)| (i as f64 * seconds, (i + 1) as f64 * seconds, *bin))
    }

    /// What fell into a bin, perhaps nothing.
    pub fn bin(&self, place: usize) -> Bin {
        self.bins.get(place).copied().unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        self.bins.len()
    }

    /// How long a bin lasts.
    pub fn seconds(&self) -> f64 {
        self.bin as f64 / 1e9
    }

    /// The same in bins at least that long.
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

    /// This bin with a later one.
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
    fn a_spike_is_still_there_after_a_million_values() {
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
        // Thirds of 0, 1 and 2; where the spike is stood a 0.
        assert_eq!(sum, 999_999.0 + 99.0);
    }

    #[test]
    fn bins_of_two_tracks_can_be_made_equally_long() {
        let (mut short, mut long) = (Track::default(), Track::default());
        short.add(Duration::from_micros(3), 1.0);
        (0..5000).for_each(|i| long.add(Duration::from_micros(i), 1.0));

        let short = short.coarsened(long.seconds());

        assert_eq!(short.seconds(), long.seconds());
        assert_eq!((short.len(), short.bin(0).count, short.bin(7).count), (1, 1, 0));
    }
}
