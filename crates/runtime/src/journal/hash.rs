//! The hash of a journal: equal for equal runs, on every machine and with every compiler.
//!
//! It is spelled out field by field, because std promises nothing about how its own types hash.

use std::time::Duration;

use paceline_learn::mix;

use super::{Line, Record};
use crate::ids::WorkerId;
use crate::spans::Spans;

/// Covers times, samples and results, but no tickets or serial numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalHash(u64);

impl JournalHash {
    pub fn value(self) -> u64 {
        self.0
    }

    pub fn add(&mut self, line: &Line) {
        // How often a run is evaluated is no part of it, nor is how well clocks agree.
        if let Record::Validated { .. } | Record::Fetched { .. } | Record::ClockSet { .. } =
            line.record
        {
            return;
        }
        self.time(line.at);
        self.number(u64::from(tag(&line.record)));
        self.record(&line.record);
    }

    fn record(&mut self, record: &Record) {
        match record {
            Record::Began { version, seed, samples_total, .. } => {
                self.numbers(&[u64::from(*version), *seed, *samples_total]);
            }
            Record::Started { who }
            | Record::Crashed { who }
            | Record::Left { who }
            | Record::PutOut { who } => {
                self.worker(*who);
            }
            Record::View { number, members, .. } => {
                self.numbers(&[*number, members.len() as u64]);
                members.iter().for_each(|member| self.worker(*member));
            }
            Record::Freed { who, spans } => {
                self.worker(*who);
                self.spans(spans);
            }
            Record::Computed { who, since, samples, .. } => {
                self.worker(*who);
                self.time(*since);
                self.number(*samples);
            }
            Record::Entered { who, view, exchange, round, samples, compute } => {
                self.worker(*who);
                self.numbers(&[*view, *exchange, *round, *samples]);
                self.time(*compute);
            }
            Record::Exchanged { who, view, exchange, entered, blocked, bytes } => {
                self.worker(*who);
                self.numbers(&[*view, *exchange]);
                self.time(*entered);
                self.time(*blocked);
                self.number(*bytes);
            }
            Record::Interrupted { who, view, exchange, bytes } => {
                self.worker(*who);
                self.numbers(&[*view, *exchange, *bytes]);
            }
            Record::Sent { who, to, bytes } => {
                self.worker(*who);
                self.worker(*to);
                self.number(*bytes);
            }
            Record::Waited { who, whom, since } => {
                self.worker(*who);
                self.worker(*whom);
                self.time(*since);
            }
            Record::Applied { who, version, spans, loss_sum, weight, staleness, rate, .. } => {
                self.worker(*who);
                self.number(*version);
                self.spans(spans);
                self.numbers(&[loss_sum.to_bits(), *staleness, u64::from(rate.to_bits())]);
                // Only where it is not the number of samples, so that other journals keep their hashes.
                weight.iter().for_each(|weight| self.number(weight.to_bits()));
            }
            // The fingerprint is computed on demand only.
            Record::Committed { who, round, .. } => {
                self.worker(*who);
                self.number(*round);
            }
            Record::RolledBack { who, round, samples } => {
                self.worker(*who);
                self.numbers(&[*round, *samples]);
            }
            Record::Settled { who, view, round, adopted } => {
                self.worker(*who);
                self.numbers(&[*view, *round]);
                self.maybe(adopted.map(|source| u64::from(source.0)));
            }
            Record::Restored { who, version, .. } => {
                self.worker(*who);
                self.number(*version);
            }
            Record::Note { who, name, value, .. } => {
                self.worker(*who);
                self.text(name);
                self.number(value.to_bits());
            }
            Record::Scored { samples, loss, accuracy }
            | Record::Validated { samples, loss, accuracy } => {
                self.numbers(&[*samples, loss.to_bits(), accuracy.to_bits()]);
            }
            Record::Fetched { samples, bytes } => self.numbers(&[*samples, *bytes]),
            Record::ClockSet { who, error } => {
                self.worker(*who);
                self.time(*error);
            }
            Record::Finished { who, rounds, fingerprint } => {
                self.worker(*who);
                self.numbers(&[*rounds, *fingerprint]);
            }
            Record::Over | Record::StartedOver | Record::Restarted => {}
            Record::GaveUp { restarts } => self.number(u64::from(*restarts)),
            Record::Disagreed { exchange, workers } => {
                self.number(*exchange);
                workers.iter().for_each(|who| self.worker(*who));
            }
            Record::Thinned { keeping_one_in } => self.number(*keeping_one_in),
            // The history before is no part of what this run does.
            Record::Resumed { round, version, spans, loss_first, loss_last, .. } => {
                self.numbers(&[*round, *version]);
                self.spans(spans);
                self.maybe(loss_first.map(f64::to_bits));
                self.maybe(loss_last.map(f64::to_bits));
            }
        }
    }

    fn number(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn worker(&mut self, worker: WorkerId) {
        self.number(u64::from(worker.0));
    }

    fn time(&mut self, time: Duration) {
        self.numbers(&[time.as_secs(), u64::from(time.subsec_nanos())]);
    }

    fn spans(&mut self, spans: &Spans) {
        self.number(spans.intervals().len() as u64);
        spans.intervals().iter().for_each(|(from, to)| self.numbers(&[*from, *to]));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.number(u64::from_le_bytes(word));
        }
    }

    fn maybe(&mut self, number: Option<u64>) {
        self.number(u64::from(number.is_some()));
        number.into_iter().for_each(|number| self.number(number));
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        // What ends a text: no UTF-8 text contains this byte.
        self.number(0xff);
    }
}

/// A hash of a text that is the same on every machine.
pub fn digest(text: &str) -> u64 {
    let mut hash = JournalHash::default();
    hash.bytes(text.as_bytes());
    hash.value()
}

/// The kind as a number. A new kind gets a new number, wherever it stands in the enum.
fn tag(record: &Record) -> u8 {
    match record {
        Record::Began { .. } => 0,
        Record::Started { .. } => 1,
        Record::Crashed { .. } => 2,
        Record::Left { .. } => 3,
        Record::View { .. } => 4,
        Record::Freed { .. } => 5,
        Record::Computed { .. } => 6,
        Record::Entered { .. } => 7,
        Record::Exchanged { .. } => 8,
        Record::Sent { .. } => 9,
        Record::Waited { .. } => 10,
        Record::Applied { .. } => 11,
        Record::Committed { .. } => 12,
        Record::RolledBack { .. } => 13,
        Record::Settled { .. } => 14,
        Record::StartedOver => 15,
        Record::Restored { .. } => 16,
        Record::Note { .. } => 17,
        Record::Scored { .. } => 18,
        Record::Over => 19,
        Record::Finished { .. } => 20,
        Record::Thinned { .. } => 21,
        Record::Resumed { .. } => 22,
        Record::GaveUp { .. } => 23,
        Record::Disagreed { .. } => 24,
        Record::PutOut { .. } => 25,
        Record::Restarted => 26,
        Record::Interrupted { .. } => 27,
        Record::Validated { .. } => 28,
        Record::Fetched { .. } => 29,
        Record::ClockSet { .. } => 30,
    }
}

/// A short name for a replica's exact bits.
pub fn fingerprint(params: &[f32]) -> u64 {
    params.iter().fold(params.len() as u64, |hash, x| mix(hash ^ bits(*x)))
}

/// All that are not numbers count as one: which bits their sum has depends on the order in which a processor happens to add two of them.
fn bits(x: f32) -> u64 {
    u64::from(if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
}

/// A checksum of a vector's bits at memory speed: eight independent chains hide the latency of a multiplication.
pub fn checksum(values: &[f32]) -> u64 {
    const CHAINS: usize = 8;
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |chain: u64, x: f32| (chain.rotate_left(23) ^ bits(x)).wrapping_mul(FACTOR);
    let mut chains = [values.len() as u64; CHAINS];
    let mut blocks = values.chunks_exact(CHAINS);
    for block in &mut blocks {
        for (chain, x) in chains.iter_mut().zip(block) {
            *chain = step(*chain, *x);
        }
    }
    for (chain, x) in chains.iter_mut().zip(blocks.remainder()) {
        *chain = step(*chain, *x);
    }
    chains.into_iter().fold(0, |hash, chain| mix(hash ^ chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_differ_by_any_bit_of_a_number_and_by_none_of_what_is_not_one() {
        let numbers: Vec<f32> = (0..21).map(|i| i as f32 - 3.5).collect();
        for i in 0..numbers.len() {
            let with = |bits: u32| {
                let mut other = numbers.clone();
                other[i] = f32::from_bits(bits);
                (checksum(&other), fingerprint(&other))
            };
            let same = with(numbers[i].to_bits());
            let other = with(numbers[i].to_bits() ^ 1);
            assert!(same.0 != other.0 && same.1 != other.1, "number {i}");
            assert_eq!(with(0xffc0_0000), with(0x7fc0_1234), "number {i}");
            assert_ne!(with(0x7fc0_0000), same, "number {i}");
        }
    }
}
