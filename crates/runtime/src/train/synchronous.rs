//! Rounds as transactions: a member commits a round or undoes it, and settling makes all members agree.

use std::sync::Arc;

use super::shared_state;
use crate::coordination::Word;
use crate::executor::{Inbox, Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::strategy::AnyStrategy;
use crate::view::View;
use crate::wire::{Letter, SharedState, Shelf, Standing};
use crate::worker::Worker;

/// Runs rounds until the job is over or this worker has left.
pub async fn run(worker: &mut Worker, mut strategy: Box<dyn AnyStrategy>) {
    // In the first view all members start from the same seed, so there is nothing to settle.
    let mut settled = worker.view.number == 1;
    let mut entered = u64::from(settled);
    let mut newcomer = !settled;
    let mut said_bye = false;
    if worker.is_done() {
        // A finished job was resumed; it may be saved in another folder now.
        hand_in_if_due(worker, strategy.as_ref()).await;
    }
    while !worker.port.look(|inbox| inbox.over) {
        if !said_bye && worker.port.look(|inbox| inbox.leave_ordered) {
            said_bye = true;
            worker.port.tell(Word::Bye);
        }
        let (lost, changed) = worker.port.look(|inbox| {
            let newest = inbox.view.as_ref().map_or(0, |view| view.number);
            (inbox.has_lost_one_of(&worker.view), newest > worker.view.number)
        });
        let has_ended = worker.is_done() || worker.state.agreed.stopped;
        // A new view is entered when all members know of it: at once if a member is lost, else after
        // the round whose exchange said so, or when there are no more rounds.
        let is_announced = worker.newest_view_agreed > worker.view.number;
        let must_settle = !settled || lost || is_announced || (has_ended && changed);
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
            let changed = |inbox: &mut Inbox| {
                let changed = inbox.view.as_ref().is_some_and(|view| view.number > known);
                (inbox.over || changed).then_some(())
            };
            worker.port.until(Wanted::End, changed).await;
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

/// One transaction: commits, or restores everything. Returns whether it was committed.
async fn attempt(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>, step: Step) -> bool {
    let before = (worker.state.clone(), strategy.copy());
    let nominal_batch = strategy.nominal_batch(worker.view.members.len());
    worker.begin_round(nominal_batch, strategy.lane_batch(), true);
    let ended = match step {
        Step::Round => strategy.round(worker).await,
        Step::Finish => strategy.finish(worker).await,
    };
    match ended {
        Ok(()) => {
            // First, so that a reader of the round's lines can read its replica.
            worker.publish();
            worker.commit();
            worker.evaluate_epoch(worker.samples_done(), &[worker.id], Shelf::Replica);
        }
        Err(_) => {
            worker.roll_back(before.0);
            *strategy = before.1;
        }
    }
    ended.is_ok()
}

/// Hands in this worker's part of a snapshot when one is due. All members decide alike, so that all parts
/// are of the same round; if a member is lost meanwhile, there is no snapshot.
async fn hand_in_if_due(worker: &mut Worker, strategy: &dyn AnyStrategy) {
    let Some(saves) = worker.plan.saves else { return };
    let round = worker.state.round;
    let is_whole_period = saves.every_rounds.is_some_and(|every| round % every == 0);
    let has_ended = worker.is_done() && !worker.has_sum_under_way();
    let is_agreed = std::mem::take(&mut worker.save_agreed);
    // A stopped job is saved before the sum under way is drained, so that it can continue as if it had
    // never been stopped; the state after draining is not saved.
    let is_due = match worker.state.agreed.stopped {
        true => has_ended || !worker.stop_served,
        false => has_ended || is_whole_period || is_agreed,
    };
    if is_due {
        worker.save_served = worker.port.look(|inbox| inbox.save_ordered);
        worker.stop_served = worker.state.agreed.stopped;
        let done = worker.state.agreed.ledger.done().clone();
        let shared = shared_state(worker, strategy);
        let _ = worker.hand_in(round, Some(done), shared).await;
    }
}

/// The view to enter next. All members pass through the same sequence of views; a view with a lost member is
/// skipped, because it cannot be settled. `None`: the next view is without this
/// worker, or the job is over.
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

/// Enters a view: members that are behind adopt everything from the most advanced one. Returns whether that
/// succeeded; if not, another member was lost meanwhile.
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
) -> Result<Option<WorkerId>, Interrupt> {
    let newest_view = worker.port.look(|inbox| inbox.view.as_ref().map_or(0, |view| view.number));
    let round = worker.state.round;
    let standings = worker.gather(Standing { round, newcomer, newest_view }).await?;
    // Newcomers, too, must know of later views at the same time as all others.
    let newest = standings.iter().map(|standing| standing.newest_view).max();
    worker.newest_view_agreed = worker.newest_view_agreed.max(newest.unwrap_or(0));
    let members = worker.view.members.clone();
    let rows = || members.iter().zip(standings.iter());
    let best = rows().filter(|(_, s)| !s.newcomer).map(|(_, s)| s.round).max();
    // If only newcomers are left, all of them are at the beginning of the job.
    let Some(best) = best else { return Ok(None) };
    let is_behind = |s: &Standing| s.newcomer || s.round < best;
    let (source, _) = rows().find(|(_, s)| !is_behind(s)).expect("one is the most advanced");
    if *source == worker.id {
        let state = Arc::new(shared_state(worker, strategy.as_ref()));
        for (member, _) in rows().filter(|(_, s)| is_behind(s)) {
            let (view, state) = (worker.view.number, state.clone());
            worker.port.send(*member, Letter::SharedState { view, state });
        }
        return Ok(None);
    }
    if !is_behind(&standings[worker.rank()]) {
        return Ok(None);
    }
    let shared = receive_shared_state(worker, *source).await?;
    strategy.load(shared.strategy.clone()).expect("members run the same strategy");
    worker.state.agreed = shared.agreed.clone();
    worker.state.round = shared.round;
    worker.state.version = shared.version;
    worker.state.params = shared.params.clone();
    worker.state.optimizer = shared.optimizer.clone();
    worker.skip_epochs(worker.samples_done());
    Ok(Some(*source))
}

async fn receive_shared_state(
    worker: &Worker,
    source: WorkerId,
) -> Result<Arc<SharedState>, Interrupt> {
    worker
        .port
        .until(Wanted::SharedState { from: source }, |inbox| {
            let lost = inbox.has_lost_one_of(&worker.view) || inbox.over;
            let state = inbox.shared_state(source, worker.view.number);
            state.map(Ok).or(lost.then_some(Err(Interrupt::ViewChanged)))
        })
        .await
}
