//! Rounds that are never undone: each worker at its own pace, with or without a center.

use super::shared_state;
use crate::coordination::{Word, collection};
use crate::executor::Wanted;
use crate::journal::Record;
use crate::server::Server;
use crate::strategy::{AnyStrategy, Coordination};
use crate::view::View;
use crate::wire::{Extent, HEADER_BYTES, Letter, Shelf};
use crate::worker::Worker;

/// Runs rounds until the job is over or this worker has left.
pub async fn run(worker: &mut Worker, mut strategy: Box<dyn AnyStrategy>) {
    let coordination = strategy.coordination();
    let centered = matches!(coordination, Coordination::Centered { .. });
    if worker.view.number > 1 {
        adopt_published(worker, centered).await;
    }
    worker.publish();
    if let Coordination::Centered { applies_samples } = coordination {
        keep_center(worker, strategy.copy(), applies_samples);
    }
    let mut said_bye = false;
    while !worker.port.look(|inbox| inbox.over) {
        let newest = worker.port.look(|inbox| inbox.view.clone()).expect("a member has a view");
        if !newest.has(worker.id) {
            break;
        }
        if !centered {
            // With a center, the task that keeps it still needs to look at each view.
            worker.port.look(|inbox| inbox.forget_views(newest.number));
        }
        worker.view = newest;
        let is_only_member = worker.view.members.len() == 1;
        // The only member cannot leave: it works until another one has joined.
        if worker.port.look(|inbox| inbox.leave_ordered) && !(said_bye && is_only_member) {
            worker.give_back_lease().await;
            if !std::mem::replace(&mut said_bye, true) {
                worker.port.tell(Word::Bye);
            }
            let (known, me) = (worker.view.number, worker.id);
            if !is_only_member {
                wait_for_change(worker, known, |view| !view.has(me) || view.members == [me]).await;
            }
            continue;
        }
        let ordered = worker.port.look(|inbox| inbox.save_ordered);
        if ordered > worker.save_served {
            worker.save_served = ordered;
            hand_in(worker, strategy.as_ref(), ordered).await;
        }
        let nominal_batch = strategy.nominal_batch(worker.view.members.len());
        worker.begin_round(nominal_batch, strategy.lane_batch(), false);
        let ended = strategy.round(worker).await;
        worker.commit();
        let samples = worker.samples_at_lease();
        match coordination {
            // The server knows the samples in its center better than any lease.
            Coordination::Centered { applies_samples: true } => {}
            Coordination::Centered { applies_samples: false } => {
                worker.evaluate_epoch(samples, &[worker.server()], Shelf::Center);
            }
            Coordination::Asynchronous | Coordination::Synchronous => {
                let members = worker.view.clone();
                worker.evaluate_epoch(samples, &members.members, Shelf::Replica);
            }
        }
        if ended.is_ok() && worker.out_of_samples {
            if centered {
                worker.port.send(worker.server(), Letter::Idle);
            }
            // The job is saved with the replica that is evaluated.
            worker.publish();
            hand_in(worker, strategy.as_ref(), collection::LAST).await;
            worker.port.tell(Word::Finished);
            wait_for_change(worker, worker.view.number, |_| true).await;
            worker.out_of_samples = false;
        }
    }
    worker.port.until(Wanted::End, |inbox| (inbox.over || !inbox.serving).then_some(())).await;
}

/// Between rounds a replica holds exactly the samples that this worker has reported as applied.
async fn hand_in(worker: &mut Worker, strategy: &dyn AnyStrategy, number: u64) {
    if worker.plan.saves.is_some() {
        let shared = shared_state(worker, strategy);
        let _ = worker.hand_in(number, None, shared).await;
    }
}

/// Waits for a view after `known` that is as `wanted`, for more work, for the end of the job, or for the
/// order to leave.
async fn wait_for_change(worker: &Worker, known: u64, wanted: impl Fn(&View) -> bool) {
    let was_ordered = worker.port.look(|inbox| inbox.leave_ordered);
    worker
        .port
        .until(Wanted::End, |inbox| {
            let view = inbox.view.as_ref();
            let changed = view.is_some_and(|view| view.number > known && wanted(view));
            let more_work = std::mem::take(&mut inbox.more_work);
            let leaves = inbox.leave_ordered != was_ordered;
            (inbox.over || changed || more_work || leaves).then_some(())
        })
        .await;
}

/// A newcomer adopts the center, or the replica of a random peer.
async fn adopt_published(worker: &mut Worker, centered: bool) {
    let shelf = if centered { Shelf::Center } else { Shelf::Replica };
    let mut adopted = None;
    let members = worker.view.members.clone();
    let start = worker.dice(0).below(members.len() as u64) as usize;
    let in_turn = members.iter().cycle().skip(if centered { 0 } else { start });
    for &member in in_turn.take(members.len()) {
        if member == worker.id {
            continue;
        }
        if let Ok(value) = worker.port.read(member, shelf, Extent::Whole).await {
            let bytes = HEADER_BYTES + value.bytes();
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

/// Starts the task that keeps the center as soon as a view makes this worker its first member.
/// It is a task of its own, because the worker may be waiting for samples that only a new center frees.
fn keep_center(worker: &Worker, mut keeper: Box<dyn AnyStrategy>, applies_samples: bool) {
    let (port, plan) = (worker.port.clone(), worker.plan.clone());
    worker.port.start(Box::pin(async move {
        let me = port.worker;
        let view = port
            .until(Wanted::View, |inbox| {
                let first = inbox.views.values().find(|view| view.first() == me).cloned();
                inbox.serving = first.is_some();
                if let (None, Some(newest)) = (&first, &inbox.view) {
                    // A server expects the center from the first member of the view before its own.
                    let before = newest.number.saturating_sub(1);
                    inbox.forget_views(before);
                }
                let out = inbox.over || !inbox.is_member(me);
                first.map(Some).or(out.then_some(None))
            })
            .await;
        let Some(view) = view else { return };
        if let Ok(mut server) = Server::open(plan, port.clone(), view, applies_samples).await {
            // It serves until this worker is no longer the first member, or the job is over.
            let _ = keeper.serve(&mut server).await;
            server.hand_over();
        }
        port.set(|inbox| inbox.serving = false);
    }));
}
