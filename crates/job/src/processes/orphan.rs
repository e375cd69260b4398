//! What a worker does whose coordinator is gone for good: it finishes what it can, and one member saves what was learned.
//!
//! Synchronous members need the coordinator only when somebody comes or goes: they train on, and may well finish the job. When a
//! member is lost, the lowest-ranked one that is left ends the round alone and stops. Asynchronous members get no more samples.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use paceline_net::processes::message::{Down, Up};
use paceline_runtime::coordination::{Collected, Coordination, Lease, Order, Word};
use paceline_runtime::wire::Published;
use paceline_runtime::{Snapshot, Spans, View, WorkerId, WorkerSnapshot};

use crate::checkpoint::{Checkpoints, Saved, Saving, Writer};
use crate::config::Job;
use crate::error::RunError;
use crate::job::Prepared;
use crate::run_result::Losses;

/// Follows what its worker hears and says, and gives the orders of a coordinator that is gone.
pub(super) struct Orphan {
    me: WorkerId,
    coordination: Coordination,
    members_min: usize,
    view: Option<Arc<View>>,
    plan: Option<Arc<View>>,
    /// Members that cannot be reached.
    suspected: BTreeSet<WorkerId>,
    state: State,
    /// Who saves what was learned, as it was when this worker ended: others end, too, and their links with them.
    heir: Option<WorkerId>,
    has_finished: bool,
    /// Whether it has ended: it waits to be dismissed.
    is_gone: bool,
    /// A request for samples that was not answered.
    lease: Option<u64>,
    /// The samples that this worker has reported as applied.
    done: Spans,
    part: Option<(Box<WorkerSnapshot>, Option<Spans>)>,
    center: Option<Published>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The coordinator is there, or may come back.
    Follows,
    /// It is gone.
    Orphaned,
    /// This worker ends the job alone, or has finished it.
    Ends,
    /// Another member saves what was learned.
    Resigned,
}

impl Orphan {
    pub fn new(me: WorkerId, prepared: &Prepared) -> Orphan {
        let resumed = prepared.plan.resumed.as_ref();
        Orphan {
            me,
            coordination: prepared.strategy().coordination(),
            members_min: prepared.plan.members_min,
            view: None,
            plan: None,
            suspected: BTreeSet::new(),
            state: State::Follows,
            heir: None,
            has_finished: false,
            is_gone: false,
            lease: None,
            done: resumed.map(|snapshot| snapshot.done.clone()).unwrap_or_default(),
            part: None,
            center: None,
        }
    }

    pub fn is_orphaned(&self) -> bool {
        self.state != State::Follows
    }

    /// An order of the coordinator.
    pub fn follow(&mut self, order: &Order) {
        match order {
            Order::Start { view, .. } | Order::View { view, .. } => self.enter(view.clone()),
            Order::Plan { view } => self.plan = Some(view.clone()),
            Order::Go { view: number } => {
                if let Some(plan) = self.plan.take().filter(|plan| plan.number == *number) {
                    self.enter(plan);
                }
            }
            Order::Lease { request, .. } if self.lease == Some(*request) => self.lease = None,
            _ => {}
        }
    }

    fn enter(&mut self, view: Arc<View>) {
        (self.plan, self.has_finished) = (None, false);
        self.suspected.retain(|who| view.has(*who));
        self.view = Some(view);
    }

    /// The coordinator is gone for good. Returns what the worker is told.
    pub fn abandon(&mut self) -> Vec<Down> {
        let Some(view) = self.view.clone().filter(|view| view.has(self.me)) else {
            // It waits for a start, or for its release, and nobody is left to tell it.
            self.state = State::Resigned;
            return vec![Down::Dismissed];
        };
        self.state = State::Orphaned;
        let waits = view.members.len() < self.members_min || self.plan.is_some();
        if waits || self.has_finished || !self.suspected.is_empty() {
            return self.end();
        }
        let lease = self.lease.take().map(no_more_samples);
        [Down::Orphaned].into_iter().chain(lease).collect()
    }

    /// What the worker says. Returns what it is told, if nobody else tells it anything.
    pub fn hear(&mut self, up: &Up) -> Vec<Down> {
        let is_orphaned = self.is_orphaned();
        match up {
            Up::Word(Word::Suspect { peer, .. }) => {
                self.suspected.insert(*peer);
                if is_orphaned { self.end() } else { vec![] }
            }
            Up::Word(Word::Bye) if is_orphaned => self.end(),
            Up::Word(Word::Finished) => {
                self.has_finished = true;
                if is_orphaned { self.end() } else { vec![] }
            }
            Up::Word(Word::Gone) => {
                self.is_gone = true;
                if is_orphaned { vec![Down::Dismissed] } else { vec![] }
            }
            Up::Word(Word::Lease { request, .. }) if is_orphaned => vec![no_more_samples(*request)],
            Up::Word(Word::Lease { request, .. }) => {
                self.lease = Some(*request);
                vec![]
            }
            Up::Word(Word::Done { spans }) => {
                self.done.add(spans);
                vec![]
            }
            Up::Part { part, done } => {
                self.part = Some((part.clone(), done.clone()));
                vec![]
            }
            Up::Center { center, .. } if is_orphaned => {
                self.center = center.as_deref().cloned();
                vec![]
            }
            _ => vec![],
        }
    }

    /// The lowest-ranked member that can be reached.
    fn lowest(&self) -> Option<WorkerId> {
        let members = &self.view.as_ref()?.members;
        members.iter().copied().find(|who| *who == self.me || !self.suspected.contains(who))
    }

    /// Nothing more can be done together.
    fn end(&mut self) -> Vec<Down> {
        let Some(view) = self.view.clone() else { return vec![] };
        self.heir = self.heir.or_else(|| self.lowest());
        if self.has_finished {
            self.state = State::Ends;
            // The center is read before it is gone with its worker.
            let center = Down::SendCenter { request: 0 };
            return match self.is_gone {
                // It says so only once.
                true => vec![center, Down::Dismissed],
                false => vec![center, Down::Order(Order::Over)],
            };
        }
        if self.state != State::Orphaned {
            return vec![];
        }
        if self.heir != Some(self.me) {
            self.state = State::Resigned;
            return vec![Down::Dismissed];
        }
        self.state = State::Ends;
        let newest = self.plan.as_ref().map_or(view.number, |plan| plan.number.max(view.number));
        let lost = view.members.iter().copied().filter(|who| *who != self.me).collect();
        let alone = View { number: newest + 1, members: vec![self.me], ..(*view).clone() };
        let alone = Order::View { view: Arc::new(alone), lost: Arc::new(lost) };
        let mut orders = vec![Down::Order(alone), Down::Order(Order::Stop)];
        orders.extend(self.lease.take().map(no_more_samples));
        orders
    }

    /// Saves what was learned, if that is this worker's part; returns why the program ends.
    pub fn conclude(
        &mut self,
        job: &Job,
        prepared: &Prepared,
        rescue: fn() -> std::io::Result<PathBuf>,
        say: fn(&str),
    ) -> RunError {
        if let Some(heir) = self.heir.filter(|heir| *heir != self.me) {
            return RunError::GoneAndLeft { heir };
        }
        let Some((part, done)) = self.part.take() else { return RunError::GoneWithoutUs };
        let members = vec![self.me];
        let done = done.unwrap_or_else(|| self.done.clone());
        let collected = Collected { number: part.number, members, done };
        let parts = [(self.me, *part)].into();
        let center = self.center.take();
        let snapshot = Snapshot::assemble(collected, parts, center, self.coordination);
        let is_finished = snapshot.done.len() >= prepared.plan.samples_total;
        match save(job, prepared, snapshot, rescue, say) {
            Ok(path) => RunError::GoneAndSaved { path, is_finished },
            Err(why) => RunError::GoneAndNotSaved { why },
        }
    }
}

fn no_more_samples(request: u64) -> Down {
    Down::Order(Order::Lease { request, lease: Lease::Over })
}

fn save(
    job: &Job,
    prepared: &Prepared,
    snapshot: Snapshot,
    rescue: fn() -> std::io::Result<PathBuf>,
    say: fn(&str),
) -> Result<PathBuf, String> {
    let folder = rescue().map_err(|error| error.to_string())?;
    let checkpoints = Checkpoints::into(&folder.to_string_lossy());
    let (job, now) = (job.clone(), Arc::default());
    let saving = Saving { job, checkpoints, from: None, now, say, saved: |_| {} };
    let mut prepared = prepared.clone();
    prepared.workers = 1;
    let mut writer = Writer::start(&saving, &prepared, &[]).map_err(|error| error.to_string())?;
    writer.offer(Arc::new(snapshot), Losses::default(), Default::default());
    match writer.finish() {
        Saved { newest: Some(_), .. } => Ok(folder),
        Saved { error: Some(error), .. } => Err(error.to_string()),
        Saved { .. } => Err("nothing was written".to_owned()),
    }
}

/// The two threads of a session share it.
#[derive(Clone)]
pub(super) struct SharedOrphan(Arc<Mutex<Orphan>>);

impl SharedOrphan {
    pub fn new(orphan: Orphan) -> SharedOrphan {
        SharedOrphan(Arc::new(Mutex::new(orphan)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Orphan> {
        self.0.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(me: u32, coordination: Coordination) -> Orphan {
        let prepared = Job::default().prepare(2).expect("the job is valid");
        Orphan { coordination, members_min: 2, ..Orphan::new(WorkerId(me), &prepared) }
    }

    fn begun(me: u32) -> Orphan {
        let mut orphan = orphan(me, Coordination::Synchronous);
        let members = (0..3).map(WorkerId).collect();
        let view = Arc::new(View { incarnation: 1, number: 4, members });
        orphan.follow(&Order::Start { view, from_saved: false });
        orphan
    }

    fn suspects(peer: u32) -> Up {
        Up::Word(Word::Suspect { peer: WorkerId(peer), view: 4 })
    }

    /// What a worker is told, in short.
    fn short(told: &[Down]) -> Vec<String> {
        let one = |down: &Down| match down {
            Down::Order(Order::View { view, .. }) => {
                format!(
                    "view {} {:?}",
                    view.number,
                    view.members.iter().map(|who| who.0).collect::<Vec<_>>()
                )
            }
            Down::Order(Order::Stop) => "stop".to_owned(),
            Down::Order(Order::Over) => "over".to_owned(),
            Down::Order(Order::Lease { lease: Lease::Over, request }) => {
                format!("no samples for {request}")
            }
            Down::Dismissed => "dismissed".to_owned(),
            Down::Orphaned => "orphaned".to_owned(),
            Down::SendCenter { .. } => "center".to_owned(),
            other => panic!("{other:?}"),
        };
        told.iter().map(one).collect()
    }

    #[test]
    fn members_train_on_until_the_next_loss_and_the_lowest_ends_the_round_alone() {
        let mut first = begun(0);
        assert_eq!(short(&first.abandon()), ["orphaned"]);
        assert_eq!(short(&first.hear(&suspects(2))), ["view 5 [0]", "stop"]);
        // Said once, whoever else is lost.
        assert!(first.hear(&suspects(1)).is_empty());

        let mut second = begun(1);
        let _ = second.abandon();
        assert_eq!(short(&second.hear(&suspects(2))), ["dismissed"]);
        let mut second = begun(1);
        let _ = second.abandon();
        assert_eq!(short(&second.hear(&suspects(0))), ["view 5 [1]", "stop"]);
    }

    #[test]
    fn a_job_that_is_finished_is_over_and_one_that_waits_ends_at_once() {
        let mut finished = begun(1);
        let _ = finished.abandon();
        assert_eq!(short(&finished.hear(&Up::Word(Word::Finished))), ["center", "over"]);
        let _ = finished.hear(&suspects(0));
        assert_eq!(finished.heir, Some(WorkerId(0)), "it has ended, as this one has");
        assert_eq!(short(&finished.hear(&Up::Word(Word::Gone))), ["dismissed"]);

        // The coordinator ends between "over" and "dismissed".
        let mut gone = begun(1);
        assert!(gone.hear(&Up::Word(Word::Finished)).is_empty());
        assert!(gone.hear(&Up::Word(Word::Gone)).is_empty());
        assert_eq!(short(&gone.abandon()), ["center", "dismissed"]);

        let mut lost_before = begun(0);
        assert!(lost_before.hear(&suspects(1)).is_empty(), "the coordinator may come back");
        assert_eq!(short(&lost_before.abandon()), ["view 5 [0]", "stop"]);

        let mut boarding = begun(0);
        let plan = View { incarnation: 1, number: 5, members: (0..4).map(WorkerId).collect() };
        boarding.follow(&Order::Plan { view: Arc::new(plan) });
        assert_eq!(short(&boarding.abandon()), ["view 6 [0]", "stop"]);

        let mut newcomer = orphan(0, Coordination::Synchronous);
        assert_eq!(short(&newcomer.abandon()), ["dismissed"], "it has nothing to save");
        assert!(newcomer.is_orphaned());
    }

    #[test]
    fn asynchronous_members_get_no_more_samples() {
        let mut worker = Orphan { coordination: Coordination::Asynchronous, ..begun(0) };
        let ask = |request| Up::Word(Word::Lease { request, samples: 8 });
        assert!(worker.hear(&ask(7)).is_empty());
        assert_eq!(short(&worker.abandon()), ["orphaned", "no samples for 7"]);
        assert_eq!(short(&worker.hear(&ask(8))), ["no samples for 8"]);
    }
}
