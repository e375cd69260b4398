//! Each worker at its own pace, with or without a center.

use std::sync::Arc;

use super::{begin_round, shared_state, start};
use crate::coordination::{Word, collection};
use crate::executor::{Inbox, Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::server::Server;
use crate::strategy::{AnyStrategy, Coordination};
use crate::view::View;
use crate::wire::{Extent, Letter, Published, Shelf};
use crate::worker::Worker;

/// Runs rounds until the job is over or this worker has left.
pub async fn run(worker: &mut Worker, mut strategy: Box<dyn AnyStrategy>) {
    let coordination = strategy.coordination();
    if let Coordination::Centered { applies_samples } = coordination {
        keep_center(worker, strategy.copy(), applies_samples);
    }
    if begin(worker, &mut strategy).await.is_ok() {
        live(worker, strategy, coordination).await;
    }
    let idle = |inbox: &mut Inbox| (inbox.has_ended() || !inbox.serving).then_some(());
    worker.port.until(Wanted::End, idle).await;
}

async fn live(worker: &mut Worker, mut strategy: Box<dyn AnyStrategy>, coordination: Coordination) {
    let centered = matches!(coordination, Coordination::Centered { .. });
    while !worker.port.look(|inbox| inbox.has_ended()) {
        worker.return_missing();
        worker.follow_view();
        if !worker.view.has(worker.id) {
            // Peers may still need something: the center that is handed over, or a value that is being read.
            let released = |inbox: &mut Inbox| (inbox.released || inbox.has_ended()).then_some(());
            return worker.port.until(Wanted::End, released).await;
        }
        if !centered {
            // With a center, the task that keeps it still needs to look at each view.
            worker.port.look(|inbox| inbox.forget_views(worker.view.number));
        }
        let is_only_member = worker.view.members.len() == 1;
        // The only member cannot leave: it works until another one has joined.
        let leaves = worker.port.look(|inbox| inbox.leave_ordered);
        if leaves && !(worker.has_said_bye() && is_only_member) {
            if worker.view.members.len() >= worker.plan.members_min {
                worker.give_back_lease().await;
            }
            worker.say_bye_if_ordered();
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
        begin_round(worker, strategy.as_ref());
        let ended = strategy.round(worker).await;
        worker.commit().await;
        if coordination == (Coordination::Centered { applies_samples: false }) {
            // If the center is lost before anybody has read it, the next server begins with its own replica.
            worker.publish().await;
        }
        worker.evaluate_if_due();
        if ended.is_ok() && worker.out_of_samples {
            if centered {
                worker.port.send(worker.server(), Letter::Idle);
            }
            // The job is saved with the replica that is evaluated.
            worker.publish().await;
            hand_in(worker, strategy.as_ref(), collection::LAST).await;
            worker.port.tell(Word::Finished);
            wait_for_change(worker, worker.view.number, |_| true).await;
            worker.out_of_samples = false;
        }
    }
}

/// Between rounds a replica holds exactly the samples that this worker has reported as applied.
async fn hand_in(worker: &mut Worker, strategy: &dyn AnyStrategy, number: u64) {
    if worker.plan.saves.is_some() {
        let shared = shared_state(worker, strategy).await;
        let _ = worker.hand_in(number, None, shared).await;
    }
}

/// Waits for a view after `known` that is as `wanted`, for more work, for samples that must be returned, for the end of
/// the job, or for the order to leave.
async fn wait_for_change(worker: &Worker, known: u64, wanted: impl Fn(&View) -> bool) {
    let was_ordered = worker.port.look(|inbox| inbox.leave_ordered);
    worker
        .port
        .until(Wanted::End, |inbox| {
            let view = inbox.view.as_ref();
            let changed = view.is_some_and(|view| view.number > known && wanted(view));
            let more_work = std::mem::take(&mut inbox.more_work) || !inbox.missing.is_empty();
            let leaves = inbox.leave_ordered != was_ordered;
            (inbox.has_ended() || changed || more_work || leaves).then_some(())
        })
        .await;
}

/// Waits until this worker has a replica: it starts with the others, or adopts the center or the replica of a peer. A
/// newcomer that finds nobody to adopt from waits until the coordinator says what to do.
async fn begin(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>) -> Result<(), Interrupt> {
    let (me, centered) =
        (worker.id, matches!(strategy.coordination(), Coordination::Centered { .. }));
    loop {
        let known = worker.view.number;
        worker
            .port
            .until(Wanted::View, |inbox| {
                let is_newer = |view: &Arc<View>| view.number > known && view.has(me);
                let comes = inbox.view.as_ref().is_some_and(is_newer);
                let end = inbox.has_ended().then_some(Err(Interrupt::Over));
                end.or(comes.then_some(Ok(())))
            })
            .await?;
        let started = worker.port.look(|inbox| inbox.start.clone().filter(|view| view.has(me)));
        if let Some(view) = started {
            start(worker, strategy, view).await;
            worker.publish().await;
            return Ok(());
        }
        worker.follow_view();
        let adopted =
            if centered { adopt_center(worker).await } else { adopt_replica(worker).await };
        let Some(adopted) = adopted else { continue };
        let (who, view) = (worker.id, worker.view.number);
        worker.publish().await;
        worker.port.record(Record::Settled { who, view, round: 0, adopted: Some(adopted) });
        worker.port.tell(Word::Settled { view, exchange: 0 });
        return Ok(());
    }
}

async fn adopt_center(worker: &mut Worker) -> Option<WorkerId> {
    let server = worker.server();
    let center = worker.call_server(Letter::Newcomer).await.ok()?;
    worker.set_params(center.params).await;
    worker.state.version = center.version;
    Some(server)
}

/// Adopts the replica of a random peer, or of the next one that has a replica. If none has, the members have not begun
/// yet: the first one that does is adopted from.
async fn adopt_replica(worker: &mut Worker) -> Option<WorkerId> {
    let members = worker.view.clone();
    let n = members.members.len();
    let first = worker.dice(0).below(n as u64) as usize;
    let in_turn = members.members.iter().cycle().skip(first).take(n);
    for &member in in_turn.filter(|member| **member != worker.id) {
        if let Ok(value) = worker.port.read(member, Shelf::Replica, Extent::Whole).await {
            return Some(adopt(worker, member, value).await);
        }
    }
    if worker.port.look(|inbox| inbox.view_number()) > members.number {
        return None;
    }
    let others = members.members.iter().copied().filter(|member| *member != worker.id);
    let found = worker.port.read_any(others, Shelf::Replica, Extent::Whole).await;
    let (member, value) = found?;
    Some(adopt(worker, member, value).await)
}

async fn adopt(worker: &mut Worker, source: WorkerId, value: Published) -> WorkerId {
    worker.adopt(value.params, value.optimizer).await;
    worker.state.version = value.version;
    source
}

/// Starts the task that keeps the center as soon as a view makes this worker its first member.
/// It is a task of its own, because the worker may be waiting for samples that only a new center frees.
fn keep_center(worker: &Worker, mut keeper: Box<dyn AnyStrategy>, applies_samples: bool) {
    let (port, plan) = (worker.port.clone(), worker.plan.clone());
    worker.port.start(Box::pin(async move {
        let me = port.worker;
        let view = port
            .until(Wanted::View, |inbox| {
                let is_mine = |view: &&Arc<View>| view.members.first() == Some(&me);
                let first = inbox.views.values().find(is_mine).cloned();
                inbox.serving = first.is_some();
                let newest = inbox.view_number();
                if first.is_none() {
                    // A server expects the center from the first member of the view before its own.
                    let older = inbox.views.range(..newest).next_back().map(|(number, _)| *number);
                    inbox.forget_views(older.unwrap_or(0));
                }
                let has_left = newest > 0 && inbox.released;
                first.map(Some).or((inbox.has_ended() || has_left).then_some(None))
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
