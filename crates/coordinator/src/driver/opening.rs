//! Opens a driver: a new job, or what another coordinator has stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use paceline_identity::{Credentials, JobName, Tokens};
use paceline_runtime::coordination::{Coordinator, Entry, State};
use paceline_runtime::{Line, Record};

use super::{Driver, DriverConfig, DriverError, LINES_WAIT, LOG_BYTES_MAX, json};
use crate::clock::Clock;
use crate::incoming::queue;
use crate::store::Opened;
use crate::stored::{Batch, Memory, Stored};

impl Driver {
    /// Starts the job, or continues it where the last coordinator stopped.
    pub fn open(mut config: DriverConfig, opened: Opened) -> Result<Driver, DriverError> {
        config.rules.keeps_log = true;
        let Opened { mut store, place, snapshot, batches } = opened;
        let is_new = snapshot.is_none();
        let stored = match snapshot {
            Some(bytes) => parse(&place, &bytes)?,
            None => {
                let stored = config.begin();
                store.snapshot(&json(&stored))?;
                stored
            }
        };
        let Stored { mut memory, state } = stored;
        if memory.text != config.text {
            return Err(DriverError::OtherJob { place, text: memory.text });
        }
        let mut entries: Vec<Entry> = vec![];
        for batch in batches {
            let batch: Batch = parse(&place, &batch)?;
            memory.apply(&batch);
            entries.extend(batch.entries);
        }
        store.begin_journal(memory.journal)?;
        let clock = Clock::since(memory.began, memory.at);
        let now = clock.now();
        let (coordinator, output) = Coordinator::restart(config.rules, state, entries, now);
        let credentials = config.authority.as_ref().map(|authority| {
            Credentials::of_coordinator(authority, memory.job.clone(), SystemTime::now())
        });
        let (sender, incoming) = queue();
        let timer = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let mut driver = Driver {
            config,
            store,
            lines: vec![],
            memory,
            coordinator,
            clock,
            credentials,
            sender,
            incoming,
            timer: timer.map_err(DriverError::Timer)?,
            lanes: BTreeMap::new(),
            closed: BTreeMap::new(),
            wakes: BTreeSet::new(),
            next_tick: now,
            coordinators: vec![],
            batch: Batch::default(),
            commit_at: None,
            after: vec![],
            happening: vec![],
            happened: vec![],
            log_bytes_max: LOG_BYTES_MAX,
            lines_wait: LINES_WAIT,
            keeps_line: Box::new(|_| true),
            first_lines: Box::new(|_| vec![]),
        };
        driver.coordinators = driver.store.coordinators();
        driver.carry_out(output);
        if !is_new {
            driver.line(Line { at: now, record: Record::Restarted });
        }
        driver.commit()?;
        Ok(driver)
    }
}

impl DriverConfig {
    fn begin(&self) -> Stored {
        let memory = Memory {
            job: JobName::random(),
            text: self.text.clone(),
            // As if the earlier run had just ended.
            began: SystemTime::now() - self.elapsed,
            at: self.elapsed,
            facts: None,
            tokens: Tokens::default(),
            heard: BTreeMap::new(),
            addresses: BTreeMap::new(),
            banned: BTreeSet::new(),
            journal: 0,
        };
        Stored { memory, state: State::new(self.rules, self.done.clone()) }
    }
}

fn parse<T: serde::de::DeserializeOwned>(place: &str, bytes: &[u8]) -> Result<T, DriverError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let place = place.to_owned();
        DriverError::Format { place, why: error.to_string() }
    })
}
