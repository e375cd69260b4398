//! The coordinator's state machine: no sequence of words breaks it, and its log replays to the state that wrote it.
//!
//! Bytes are a short script of inputs, so that mutations are other sequences and not other spellings of JSON.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use paceline_fuzz::within;
use paceline_runtime::coordination::{
    Coordination, Coordinator, Entry, Input, Rules, Saved, State, Word,
};
use paceline_runtime::{Spans, WorkerId};

const TOTAL: u64 = 100;

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Small numbers, and the largest.
    fn number(&mut self) -> Option<u64> {
        Some(match self.byte()? {
            255 => u64::MAX,
            254 => u64::MAX - 1,
            253 => u64::from(u32::MAX),
            small => u64::from(small) / 2,
        })
    }

    fn who(&mut self) -> Option<WorkerId> {
        Some(WorkerId(match self.byte()? {
            255 => u32::MAX,
            id => u32::from(id % 6),
        }))
    }

    fn spans(&mut self) -> Option<Spans> {
        let mut spans = Spans::new();
        for _ in 0..self.byte()? % 3 {
            let from = self.number()?;
            spans.insert(from, from.saturating_add(u64::from(self.byte()?)));
        }
        Some(spans)
    }

    fn word(&mut self, view: u64) -> Option<Word> {
        // Mostly about the view in force: others are ignored.
        let view_or = |it: &mut Self| {
            it.byte().map(|byte| {
                if byte == 0 { u64::MAX } else { view + u64::from(byte % 3) - 1.min(view) }
            })
        };
        Some(match self.byte()? % 11 {
            0 => Word::Lease { request: self.number()?, samples: self.number()? },
            1 => Word::Done { spans: self.spans()? },
            2 => Word::Return { holder: self.who()?, spans: self.spans()? },
            3 => Word::Restored { reign: self.number()?, done: self.spans()? },
            4 => Word::Settled { view: view_or(self)?, exchange: self.number()? },
            5 => Word::Suspect { peer: self.who()?, view: view_or(self)? },
            6 => Word::Disagreed { exchange: self.number()?, workers: vec![self.who()?] },
            7 => {
                let done = if self.byte()? % 2 == 0 { Some(self.spans()?) } else { None };
                Word::HandedIn { snapshot: self.number()?, digest: self.number()? % 2, done }
            }
            8 => Word::Finished,
            9 => Word::Bye,
            _ => Word::Gone,
        })
    }

    fn input(&mut self, coordinator: &Coordinator) -> Option<Input> {
        Some(match self.byte()? % 16 {
            0 | 1 => Input::Hello,
            2 => Input::Beat(self.who()?),
            3 => Input::Lost(self.who()?),
            4 => Input::Tick,
            5 => match self.byte()? % 8 {
                0 => Input::Stop,
                1 => Input::PutOut(self.who()?),
                2 => Input::Ban(self.who()?),
                3 => Input::Sized { samples_total: self.number()? },
                _ => Input::Save,
            },
            6 => {
                let (round, version) = (self.number()?, self.number()?);
                Input::Saved(Saved { round, version, done: self.spans()? })
            }
            7 => Input::Word {
                from: self.who()?,
                number: self.number()?,
                word: self.word(coordinator.view().number)?,
            },
            _ => {
                let from = self.who()?;
                let number = coordinator.received(from) + 1;
                Input::Word { from, number, word: self.word(coordinator.view().number)? }
            }
        })
    }
}

fn rules(script: &mut Script<'_>) -> Option<Rules> {
    let coordination = match script.byte()? % 4 {
        0 => Coordination::Synchronous,
        1 => Coordination::Asynchronous,
        2 => Coordination::Centered { applies_samples: true },
        _ => Coordination::Centered { applies_samples: false },
    };
    let shape = script.byte()?;
    Some(Rules {
        members_first: usize::from(shape % 3 + 1),
        members_min: usize::from(shape / 3 % 3),
        members_max: (shape % 2 == 1).then_some(3),
        patience: Duration::from_millis(50),
        gathering: Duration::from_millis(u64::from(shape % 5)),
        restarts_max: 2,
        keeps_log: true,
        ..Rules::new(TOTAL, 1, coordination)
    })
}

fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let Some(rules) = rules(&mut script) else { return };
    // Workers that acknowledge nothing keep all their orders, and an order may name all workers.
    let allowed = (1 << 20) + 4096 * data.len() + 64 * data.len() * data.len();
    let replayed = within(allowed, || {
        let mut coordinator = Coordinator::new(rules, Spans::new());
        let (mut log, mut now) = (vec![Entry::Started], Duration::ZERO);
        while let Some(input) = script.input(&coordinator) {
            now += Duration::from_millis(u64::from(data.len() as u32 % 7));
            log.extend(coordinator.step(now, input).log);
            if let Some(byte) = script.0.first()
                && byte % 16 == 15
            {
                coordinator.acknowledged(WorkerId(u32::from(byte / 16)), u64::from(*byte));
                drop(coordinator.reconnected(now, WorkerId(u32::from(byte / 16))));
            }
        }
        let mut replayed = State::new(rules, Spans::new());
        for entry in &log {
            drop(replayed.apply(entry));
        }
        // Which orders were acknowledged is not logged: they are sent again.
        for who in (0..16).map(WorkerId) {
            let all = replayed.unacknowledged(who).len() as u64;
            let kept = coordinator.state().unacknowledged(who).len() as u64;
            assert!(kept <= all);
            replayed.acknowledged(who, all - kept);
        }
        assert_eq!(&replayed, coordinator.state());
        replayed
    });
    let text = serde_json::to_vec(&replayed).expect("a state can be written");
    // What orders share in memory they share no longer when they are read.
    within(allowed + 64 * text.len(), || {
        let stored: State = serde_json::from_slice(&text).expect("what was written can be read");
        assert_eq!(stored, replayed);
    });
});
