//! Tells workers why they wait: nobody sees the coordinator's reasons at their terminals.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_coordinator::Driver;
use paceline_runtime::WorkerId;

use super::Note;

/// What the workers were told last.
pub(super) struct Waiting {
    saves: bool,
    told: BTreeMap<WorkerId, String>,
    looked: Instant,
}

/// The time between two looks at who waits: a coordinator of a thousand workers has other things to do.
const LOOK: Duration = Duration::from_millis(200);

const LAST: &str = "this is the last worker, so it cannot leave yet: it leaves when another one has joined and holds what was \
     learned. To end the job instead, stop its coordinator; Ctrl-C again ends this worker at once, and what was learned since the \
     newest checkpoint is lost";

impl Waiting {
    pub fn new(saves: bool) -> Waiting {
        Waiting { saves, told: BTreeMap::new(), looked: Instant::now() }
    }

    /// Tells every worker once, unless its reason changes.
    pub fn tell(&mut self, driver: &Driver) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let state = driver.coordinator().state();
        let mut reasons = BTreeMap::new();
        let members = match state.view().members.len() {
            1 => "1 member".to_owned(),
            members => format!("{members} members"),
        };
        for who in state.beyond_max() {
            let text = format!(
                "the job is full: it has {members}, as many as it takes (--workers of the coordinator); this worker \
                 waits until one of them leaves or is lost"
            );
            reasons.insert(who, text);
        }
        // The last member of a job that waits and saves goes as soon as its part is saved.
        let goes = state.last_to_leave().filter(|_| self.saves);
        if let Some(who) = state.only_member_leaves().filter(|who| goes != Some(*who)) {
            reasons.insert(who, LAST.to_owned());
        }
        self.told.retain(|who, _| reasons.contains_key(who));
        let connected: Vec<WorkerId> = driver.connected().collect();
        for (who, text) in reasons {
            if connected.contains(&who) && self.told.get(&who) != Some(&text) {
                driver.note(who, Note::Told { text: text.clone() }.into());
                self.told.insert(who, text);
            }
        }
    }
}
