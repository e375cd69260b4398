//! The one loop around rounds.
//!
//! Where all members exchange together, a round happens wholly or not at all: when a member is lost,
//! replica, memory and ledger go back to where they were, and all settle on the most advanced.
//! Asynchronous rounds are never undone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cluster::{Letter, SharedState, Shelf, Standing, View, Word, WorkerId};
use crate::executor::{Inbox, Interrupt, Port, Result, Wanted};
use crate::journal::Record;
use crate::plan::Plan;
use crate::server::Server;
use crate::snapshot::{self, Snapshot};
use crate::strategy::{AnyStrategy, Coordination};
use crate::worker::{Agreed, Worker};

/// A worker's whole life.
pub async fn train(plan: Arc<Plan>, port: Port, mut strategy: Box<dyn AnyStrategy>) {
    let view = port
        .until(Wanted::View, |inbox| {
            let mine = inbox.views.values().find(|view| view.has(port.worker)).cloned();
            mine.map(Some).or(inbox.over.then_some(None))
        })
        .await;
    let Some(view) = view else { return port.tell(Word::Gone) };
    let mut worker = Worker::new(plan, port, view);
    if let Some(snapshot) = worker.plan.resumed.clone() {
        resume(&mut worker, &mut strategy, &snapshot);
    }
    match strategy.coordination() {
        Coordination::Synchronous => together(&mut worker, strategy).await,
        Coordination::Asynchronous | Coordination::Centered { .. } => {
            apart(&mut worker, strategy).await
        }
    }
    let (who, rounds) = (worker.id, worker.state.round);
    // Who was leaving when all was over has left.
    if worker.port.look(|inbox| inbox.over && inbox.is_member(who)) {
        let fingerprint = worker.port.fingerprint(&worker.state.params);
        worker.port.record(Record::Finished { who, rounds, fingerprint });
    } else {
        worker.port.record(Record::Left { who });
    }
    worker.port.tell(Word::Gone);
}

/// Rounds as transactions; ends when the job is over or this worker has left.
async fn together(worker: &mut Worker, mut strategy: Box<dyn AnyStrategy>) {
    // In the first view all start from the same seed, so there is nothing to settle.
    let mut settled = worker.view.number == 1;
    let mut entered = u64::from(settled);
    let mut newcomer = !settled;
    let mut said_bye = false;
    if worker.is_done() {
        // It was so when it was saved; it may be saved elsewhere now.
        hand_in_if_due(worker, strategy.as_ref()).await;
    }
    while !worker.port.look(|inbox| inbox.over) {
        if !said_bye && worker.port.look(|inbox| inbox.leave_wished) {
            said_bye = true;
            worker.port.tell(Word::Bye);
        }
        let (lost, changed) = worker.port.look(|inbox| {
            let newest = inbox.view.as_ref().map_or(0, |view| view.number);
            (inbox.has_lost_one_of(&worker.view), newest > worker.view.number)
        });
        let has_ended = worker.is_done() || worker.state.agreed.stopped;
        // A changed view is entered when all members know of it: at once if one is lost, else after
        // the round whose exchange said so, or when there are no more rounds.
        let heard = worker.heard > worker.view.number;
        let must_settle = !settled || lost || heard || (has_ended && changed);
        if must_settle || has_ended {
            if worker.has_sum_under_way() && !lost && settled {
                if attempt(worker, &mut strategy, Step::Finish).await {
                    hand_in_if_due(worker, strategy.as_ref()).await;
                }
                continue;
            }
            if must_settle {
                let Some(view) = next_view(worker, entered).await else { return };
                entered = view.number;
                settled = settle(worker, &mut strategy, view, newcomer).await;
                newcomer &= !settled;
                continue;
            }
            worker.port.tell(Word::Finished);
            let known = worker.view.number;
            let news = |inbox: &mut Inbox| {
                let changed = inbox.view.as_ref().is_some_and(|view| view.number > known);
                (inbox.over || changed).then_some(())
            };
            worker.port.until(Wanted::End, news).await;
            continue;
        }
        settled = attempt(worker, &mut strategy, Step::Round).await;
        if settled {
            hand_in_if_due(worker, strategy.as_ref()).await;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Round,
    Finish,
}

/// One transaction: commits, or takes everything back. Gives whether it went through.
async fn attempt(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>, step: Step) -> bool {
    let before = (worker.state.clone(), strategy.copy());
    worker.begin_round(strategy.nominal_batch(worker.view.members.len()), true);
    let ended = match step {
        Step::Round => strategy.round(worker).await,
        Step::Finish => strategy.finish(worker).await,
    };
    match ended {
        Ok(()) => {
            // First, so that whoever reads of the round can have what came of it.
            worker.publish();
            worker.commit();
        }
        Err(_) => {
            worker.roll_back(before.0);
            *strategy = before.1;
        }
    }
    ended.is_ok()
}

/// Hands in this worker's portion of a snapshot when it is time to. All members decide alike, so that
/// all portions are of one moment; if one of them is lost meanwhile, there is no snapshot.
async fn hand_in_if_due(worker: &mut Worker, strategy: &dyn AnyStrategy) {
    let Some(saves) = worker.plan.saves else { return };
    let round = worker.state.round;
    let is_whole_period = saves.every_rounds.is_some_and(|every| round % every == 0);
    let has_ended = worker.is_done() && !worker.has_sum_under_way();
    let is_agreed = std::mem::take(&mut worker.save_agreed);
    // A stopped job is saved before what is under way is drained, to go on as if it had never been
    // stopped; what comes of draining is not worth a portion.
    let is_due = match worker.state.agreed.stopped {
        true => has_ended || !worker.stop_heeded,
        false => has_ended || is_whole_period || is_agreed,
    };
    if is_due {
        worker.wish_heeded = worker.port.look(|inbox| inbox.save_wished);
        worker.stop_heeded = worker.state.agreed.stopped;
        let done = worker.state.agreed.ledger.done().clone();
        let shared = shared(worker, strategy);
        let _ = worker.hand_in(round, Some(done), shared).await;
    }
}

/// The view to enter next. Views are entered one after another, so that all members go the same way;
/// only those that hold a lost member are left out, for nobody can settle there. `None`: the next view
/// is without this worker, or all is over.
async fn next_view(worker: &Worker, entered: u64) -> Option<Arc<View>> {
    let me = worker.id;
    worker
        .port
        .until(Wanted::View, |inbox| {
            if inbox.over {
                return Some(None);
            }
            let next = inbox.views.range(entered + 1..).map(|(_, view)| view);
            let next = next.clone().find(|view| !inbox.has_lost_one_of(view))?;
            Some(next.has(me).then(|| next.clone()))
        })
        .await
}

/// What travels as [`SharedState::memory`].
#[derive(Serialize, Deserialize)]
struct Memory {
    strategy: serde_json::Value,
    agreed: Agreed,
}

/// Enters a view: those who are behind adopt everything from the most advanced. Gives whether it
/// worked out; if not, another member was lost meanwhile.
async fn settle(
    worker: &mut Worker,
    strategy: &mut Box<dyn AnyStrategy>,
    view: Arc<View>,
    newcomer: bool,
) -> bool {
    worker.enter_view(view);
    let Ok(adopted) = adopt_most_advanced(worker, strategy, newcomer).await else { return false };
    let (who, view, round) = (worker.id, worker.view.number, worker.state.round);
    worker.port.record(Record::Settled { who, view, round, adopted });
    worker.publish();
    true
}

async fn adopt_most_advanced(
    worker: &mut Worker,
    strategy: &mut Box<dyn AnyStrategy>,
    newcomer: bool,
) -> Result<Option<WorkerId>> {
    let heard = worker.port.look(|inbox| inbox.view.as_ref().map_or(0, |view| view.number));
    let round = worker.state.round;
    let standings = worker.gather(Standing { round, newcomer, heard }).await?;
    // Newcomers too must know of later views at the same time as all others.
    let newest = standings.iter().map(|standing| standing.heard).max();
    worker.heard = worker.heard.max(newest.unwrap_or(0));
    let members = worker.view.members.clone();
    let rows = || members.iter().zip(standings.iter());
    let best = rows().filter(|(_, s)| !s.newcomer).map(|(_, s)| s.round).max();
    // If only newcomers are left, all of them stand where the job began.
    let Some(best) = best else { return Ok(None) };
    let is_behind = |s: &Standing| s.newcomer || s.round < best;
    let (source, _) = rows().find(|(_, s)| !is_behind(s)).expect("somebody is the most advanced");
    if *source == worker.id {
        let shared = Arc::new(shared(worker, strategy.as_ref()));
        for (member, _) in rows().filter(|(_, s)| is_behind(s)) {
            let (view, shared) = (worker.view.number, shared.clone());
            worker.send(*member, Letter::SharedState { view, shared });
        }
        return Ok(None);
    }
    if !is_behind(&standings[worker.rank()]) {
        return Ok(None);
    }
    let shared = receive_shared_state(worker, *source).await?;
    let memory: Memory = serde_json::from_slice(&shared.memory).expect("peers send what we read");
    strategy.load(memory.strategy).expect("members run the same strategy");
    worker.state.agreed = memory.agreed;
    worker.state.round = shared.round;
    worker.state.version = shared.version;
    worker.state.params = shared.params.clone();
    worker.state.optimizer = shared.optimizer.clone();
    Ok(Some(*source))
}

/// Begins where the snapshot was taken.
fn resume(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>, snapshot: &Snapshot) {
    let first = snapshot.portions.values().next().expect("a snapshot has portions");
    let memory: Memory =
        serde_json::from_slice(&first.shared.memory).expect("it was checked when it was read");
    strategy.load(memory.strategy).expect("it was checked when it was read");
    worker.state.agreed = Agreed { stopped: false, ..memory.agreed };
    worker.begin_from(snapshot);
    if strategy.coordination() == (Coordination::Centered { applies_samples: true }) {
        // Replicas are copies of the center, and the newest is the best.
        worker.state.params = snapshot.params();
        worker.state.version = snapshot.version();
    }
    // If nothing is left to do, this is what the job is judged by.
    worker.publish();
}

/// Says what is wrong with the memory of a snapshot that this strategy is to go on from, if anything.
pub fn check_memory(memory: &[u8], mut strategy: Box<dyn AnyStrategy>) -> serde_json::Result<()> {
    let memory: Memory = serde_json::from_slice(memory)?;
    strategy.load(memory.strategy)
}

fn shared(worker: &Worker, strategy: &dyn AnyStrategy) -> SharedState {
    let memory = Memory { strategy: strategy.save(), agreed: worker.state.agreed.clone() };
    SharedState {
        round: worker.state.round,
        version: worker.state.version,
        params: worker.state.params.clone(),
        optimizer: worker.state.optimizer.clone(),
        memory: serde_json::to_vec(&memory).expect("memory is plain data"),
    }
}

async fn receive_shared_state(worker: &Worker, source: WorkerId) -> Result<Arc<SharedState>> {
    let current = worker.view.number;
    worker
        .port
        .until(Wanted::SharedState { from: source }, |inbox| {
            let lost = inbox.has_lost_one_of(&worker.view) || inbox.over;
            let letter = inbox.letter(|from, letter| {
                from == source
                    && matches!(letter, Letter::SharedState { view, .. } if *view == current)
            });
            match letter {
                Some((_, Letter::SharedState { shared, .. })) => Some(Ok(shared)),
                _ => lost.then_some(Err(Interrupt::ViewChanged)),
            }
        })
        .await
}

/// Rounds that are never undone; ends when the job is over or this worker has left.
async fn apart(worker: &mut Worker, mut strategy: Box<dyn AnyStrategy>) {
    let central = matches!(strategy.coordination(), Coordination::Centered { .. });
    if worker.view.number > 1 {
        adopt_published(worker, central).await;
    }
    worker.publish();
    if let Coordination::Centered { applies_samples } = strategy.coordination() {
        keep_center(worker, strategy.copy(), applies_samples);
    }
    while !worker.port.look(|inbox| inbox.over) {
        let newest = worker.port.look(|inbox| inbox.view.clone()).expect("a view was there before");
        if !newest.has(worker.id) {
            break;
        }
        worker.view = newest;
        if worker.port.look(|inbox| inbox.leave_wished) {
            worker.give_back_lease().await;
            worker.port.tell(Word::Bye);
            let (known, me) = (worker.view.number, worker.id);
            wait_for_news(worker, known, |view| !view.has(me)).await;
            continue;
        }
        let wished = worker.port.look(|inbox| inbox.save_wished);
        if wished > worker.wish_heeded {
            worker.wish_heeded = wished;
            hand_in(worker, strategy.as_ref(), wished).await;
        }
        worker.begin_round(strategy.nominal_batch(worker.view.members.len()), false);
        let ended = strategy.round(worker).await;
        worker.commit();
        if ended.is_ok() && worker.out_of_samples {
            if central {
                worker.send(worker.server(), Letter::Idle);
            }
            // What the job is judged by is what it is saved with.
            worker.publish();
            hand_in(worker, strategy.as_ref(), snapshot::LAST).await;
            worker.port.tell(Word::Finished);
            wait_for_news(worker, worker.view.number, |_| true).await;
            worker.out_of_samples = false;
        }
    }
    worker.port.until(Wanted::End, |inbox| (inbox.over || !inbox.serving).then_some(())).await;
}

/// Between rounds a replica holds just what this worker has said it applied.
async fn hand_in(worker: &mut Worker, strategy: &dyn AnyStrategy, number: u64) {
    if worker.plan.saves.is_some() {
        let shared = shared(worker, strategy);
        let _ = worker.hand_in(number, None, shared).await;
    }
}

/// Waits until a view after `known` is as wanted, the job is over, or this worker is asked to leave.
async fn wait_for_news(worker: &Worker, known: u64, wanted: impl Fn(&View) -> bool) {
    let asked = worker.port.look(|inbox| inbox.leave_wished);
    worker
        .port
        .until(Wanted::End, |inbox| {
            let view = inbox.view.as_ref();
            let news = view.is_some_and(|view| view.number > known && wanted(view));
            let again = std::mem::take(&mut inbox.again);
            (inbox.over || news || again || inbox.leave_wished != asked).then_some(())
        })
        .await;
}

/// A newcomer's replica: the center, or any peer's.
async fn adopt_published(worker: &mut Worker, central: bool) {
    let shelf = if central { Shelf::Center } else { Shelf::Replica };
    let mut adopted = None;
    let start = worker.dice(0).below(worker.view.members.len() as u64) as usize;
    let members = worker.view.members.clone();
    for &member in members.iter().cycle().skip(if central { 0 } else { start }).take(members.len())
    {
        if member == worker.id {
            continue;
        }
        if let Ok(value) = worker.read_shelf(member, shelf).await {
            let bytes = Letter::Handover { center: value.clone() }.bytes();
            worker.port.record(Record::Sent { who: member, to: worker.id, bytes });
            worker.state.params = value.params;
            worker.state.optimizer = value.optimizer;
            worker.state.version = value.version;
            adopted = Some(member);
            break;
        }
    }
    let (who, view) = (worker.id, worker.view.number);
    worker.port.record(Record::Settled { who, view, round: 0, adopted });
}

/// Starts the task that keeps the center from the view on that makes this worker its first member.
/// It is a task of its own, for the worker may be waiting for samples that only a new center frees.
fn keep_center(worker: &Worker, mut keeper: Box<dyn AnyStrategy>, applies: bool) {
    let (port, plan) = (worker.port.clone(), worker.plan.clone());
    worker.port.start(Box::pin(async move {
        let me = port.worker;
        let view = port
            .until(Wanted::View, |inbox| {
                let first = inbox.views.values().find(|view| view.first() == me).cloned();
                inbox.serving = first.is_some();
                let out = inbox.over || !inbox.is_member(me);
                first.map(Some).or(out.then_some(None))
            })
            .await;
        let Some(view) = view else { return };
        if let Ok(mut server) = Server::open(plan, port.clone(), view, applies).await {
            // It serves until this worker is no longer the first member, or all is over.
            let _ = keeper.serve(&mut server).await;
            server.hand_over();
        }
        port.set(|inbox| inbox.serving = false);
    }));
}
