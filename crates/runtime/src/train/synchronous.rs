//! Members that exchange with each other: how they take in newcomers, let members go, and continue after a loss.
//!
//! A loss interrupts only the exchange: [`Worker::settle`] mends it. Joins and leaves are planned: the coordinator
//! announces a view, all members board it at the same boundary between two rounds, and it is in force when the
//! coordinator says so (`Go`).

use std::sync::Arc;

use super::{begin_round, shared_state, start};
use crate::coordination::Word;
use crate::executor::{Inbox, Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::strategy::AnyStrategy;
use crate::view::View;
use crate::wire::{Letter, SharedState, Standing};
use crate::worker::Worker;

/// Runs rounds until the job is over or this worker has left.
pub async fn run(worker: &mut Worker, mut strategy: Box<dyn AnyStrategy>) {
    // The error only says that there is nothing more to do.
    let _ = live(worker, &mut strategy).await;
}

async fn live(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>) -> Result<(), Interrupt> {
    begin(worker, strategy).await?;
    loop {
        if worker.port.look(|inbox| inbox.has_ended()) {
            return Err(Interrupt::Over);
        }
        worker.say_bye_if_ordered();
        if worker.is_closed() {
            worker.settle().await?;
            continue;
        }
        let has_ended = worker.is_done() || worker.state.agreed.stopped;
        // Whether a sum under way is drained follows from the last result alone, even if the plan that it names is void by
        // now: members that deal before and after they take a result would deal differently.
        let is_planned = worker.plan_agreed > worker.state.agreed.view.number;
        // All members know this alike; what they wait for is a plan, which is boarded without a sum under way.
        let are_too_few = worker.members().len() < worker.plan.members_min;
        if worker.has_sum_under_way() && (has_ended || is_planned || are_too_few) {
            attempt(worker, strategy, Step::Finish).await?;
            hand_in_if_due(worker, strategy.as_ref()).await?;
            continue;
        }
        if let Some(plan) = plan_due(worker) {
            board(worker, strategy, plan, false).await?;
            continue;
        }
        if has_ended {
            hand_in_if_due(worker, strategy.as_ref()).await?;
            worker.port.tell(Word::Finished);
            let known = worker.view.number;
            wait(worker, Wanted::End, |inbox| inbox.view_number() > known).await?;
            continue;
        }
        if are_too_few {
            pause(worker, strategy).await?;
            continue;
        }
        attempt(worker, strategy, Step::Round).await?;
        hand_in_if_due(worker, strategy.as_ref()).await?;
    }
}

/// Waits at a boundary with too few members. No result will carry what the user wishes, but all members wait at the same boundary
/// and are told.
async fn pause(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>) -> Result<(), Interrupt> {
    let (known, me) = (worker.view.number, worker.id);
    let (has_said_bye, served) = (worker.has_said_bye(), worker.save_served);
    let saves = worker.plan.saves.is_some();
    let is_last = worker.view.members == [me];
    // The last member leaves when what it holds is saved.
    let parts = saves && is_last && has_said_bye && worker.parted_in != known;
    let has_changed = |inbox: &Inbox| inbox.view_number() > known;
    let wants_to_leave = |inbox: &Inbox| inbox.leave_ordered && !has_said_bye;
    let wants_save = |inbox: &Inbox| saves && inbox.save_ordered > served;
    let comes = |inbox: &Inbox| {
        inbox.plan_due().is_some()
            || has_changed(inbox)
            || inbox.stop_ordered
            || parts
            || wants_to_leave(inbox)
            || wants_save(inbox)
    };
    wait(worker, Wanted::View, comes).await?;
    if let Some(plan) = worker.port.look(|inbox| inbox.plan_due().cloned()) {
        board(worker, strategy, plan, false).await?;
    } else if worker.port.look(|inbox| has_changed(inbox) || wants_to_leave(inbox)) {
        // The loop settles, or says goodbye.
    } else if worker.port.look(|inbox| inbox.stop_ordered) {
        // No plan comes after the order to stop, so that all end here.
        worker.state.agreed.stopped = true;
    } else {
        if parts {
            worker.parted_in = known;
        }
        worker.save_agreed = worker.port.look(|inbox| inbox.save_ordered);
        hand_in(worker, strategy.as_ref()).await?;
    }
    Ok(())
}

/// Waits until this worker holds what the members hold: it starts with them, or adopts their state.
async fn begin(worker: &mut Worker, strategy: &mut Box<dyn AnyStrategy>) -> Result<(), Interrupt> {
    let pristine = strategy.copy();
    loop {
        worker.say_bye_if_ordered();
        let (me, said) = (worker.id, worker.has_said_bye());
        let next = |inbox: &Inbox| {
            let start = inbox.start.clone().filter(|view| view.has(me));
            let plan = inbox.plan_due().cloned().filter(|view| view.has(me));
            start.map(|view| (view, true)).or(plan.map(|view| (view, false)))
        };
        let comes = |inbox: &Inbox| next(inbox).is_some() || (inbox.leave_ordered && !said);
        wait(worker, Wanted::View, comes).await?;
        let Some((view, is_start)) = worker.port.look(|inbox| next(inbox)) else { continue };
        if is_start {
            start(worker, strategy, view).await;
            return Ok(());
        }
        board(worker, strategy, view, true).await?;
        let has_started = worker.port.look(|inbox| inbox.start.is_some());
        if !has_started && worker.port.look(|inbox| inbox.is_member(me)) {
            // The planned view is in force; or only newcomers are left that have adopted everything, and settle next.
            return Ok(());
        }
        // A member was lost, and the plan is void: the next one starts anew.
        worker.reset();
        *strategy = pristine.copy();
    }
}

async fn wait(
    worker: &Worker,
    wanted: Wanted,
    until: impl Fn(&Inbox) -> bool,
) -> Result<(), Interrupt> {
    let port = &worker.port;
    port.until(wanted, |inbox| {
        let end = inbox.has_ended().then_some(Err(Interrupt::Over));
        end.or(until(inbox).then_some(Ok(())))
    })
    .await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Round,
    Finish,
}

async fn attempt(
    worker: &mut Worker,
    strategy: &mut Box<dyn AnyStrategy>,
    step: Step,
) -> Result<(), Interrupt> {
    begin_round(worker, strategy.as_ref());
    match step {
        Step::Round => strategy.round(worker).await?,
        Step::Finish => strategy.finish(worker).await?,
    }
    // First, so that a reader of the round's lines can read its replica.
    if worker.is_shown() {
        worker.show().await;
    }
    worker.commit().await;
    worker.evaluate_if_due();
    Ok(())
}

/// Hands in this worker's part of a snapshot when one is due. All members decide alike, so that all parts
/// are of the same round; if a member is lost meanwhile, there is no snapshot, and the request for one stands.
async fn hand_in_if_due(worker: &mut Worker, strategy: &dyn AnyStrategy) -> Result<(), Interrupt> {
    let Some(saves) = worker.plan.saves else { return Ok(()) };
    let round = worker.state.round;
    let is_whole_period = saves.every_rounds.is_some_and(|every| round % every == 0);
    let has_ended = worker.is_done() && !worker.has_sum_under_way();
    let is_agreed = worker.save_agreed > worker.save_served;
    // A stopped job is saved before the sum under way is drained, so that it can continue as if it had
    // never been stopped; the state after draining is not saved.
    let is_due = match worker.state.agreed.stopped {
        true => has_ended || !worker.stop_served,
        false => has_ended || is_whole_period || is_agreed,
    };
    if is_due { hand_in(worker, strategy).await } else { Ok(()) }
}

async fn hand_in(worker: &mut Worker, strategy: &dyn AnyStrategy) -> Result<(), Interrupt> {
    worker.save_served = worker.save_agreed;
    worker.stop_served = worker.state.agreed.stopped;
    let (round, done) = (worker.state.round, worker.state.agreed.ledger.done().clone());
    let shared = shared_state(worker, strategy).await;
    worker.hand_in(round, Some(done), shared).await
}

/// The plan that all contributors of the last result had heard of, unless a view in force is newer.
fn plan_due(worker: &Worker) -> Option<Arc<View>> {
    let agreed = worker.plan_agreed;
    worker.port.look(|inbox| inbox.plan_due().filter(|plan| plan.number == agreed).cloned())
}

/// Boards a planned view: newcomers adopt everything from a member, and all wait until it is in force. It is
/// void if a member is lost before that.
async fn board(
    worker: &mut Worker,
    strategy: &mut Box<dyn AnyStrategy>,
    plan: Arc<View>,
    newcomer: bool,
) -> Result<(), Interrupt> {
    let known = worker.port.look(|inbox| inbox.view_number());
    let mut adopted = None;
    if plan.has(worker.id) {
        match share(worker, strategy, &plan, newcomer).await {
            Ok(source) => adopted = source,
            Err(Interrupt::ViewChanged) => return Ok(()),
            Err(interrupt) => return Err(interrupt),
        }
        let (view, exchange) = (plan.number, worker.state.agreed.exchanges);
        worker.port.tell(Word::Settled { view, exchange });
    }
    let is_over = |inbox: &Inbox| inbox.view_number() > known;
    wait(worker, Wanted::Go { view: plan.number }, is_over).await?;
    if !worker.port.look(|inbox| inbox.views.contains_key(&plan.number)) {
        return Ok(());
    }
    worker.stand_in(plan.clone());
    worker.agree_on(plan.clone());
    if !plan.has(worker.id) {
        return Err(Interrupt::Over);
    }
    let (who, view, round) = (worker.id, plan.number, worker.state.round);
    worker.port.record(Record::Settled { who, view, round, adopted });
    worker.publish().await;
    Ok(())
}

/// All members tell where they stand; the first that holds everything sends it to the newcomers. Returns the member
/// whose state this worker adopted.
async fn share(
    worker: &mut Worker,
    strategy: &mut Box<dyn AnyStrategy>,
    plan: &Arc<View>,
    newcomer: bool,
) -> Result<Option<WorkerId>, Interrupt> {
    let mine = Standing { newcomer, ..worker.standing() };
    let standings = worker.gather(plan, mine.clone()).await?;
    let rows = || plan.members.iter().copied().zip(standings.iter());
    let holder = rows().find(|(_, it)| !it.newcomer);
    let (source, theirs) = holder.expect("a plan keeps a member of the view in force");
    if source == worker.id {
        let state = Arc::new(shared_state(worker, strategy.as_ref()).await);
        for (member, _) in rows().filter(|(_, it)| it.newcomer) {
            let (view, state) = (plan.number, state.clone());
            worker.port.send(member, Letter::SharedState { view, state });
        }
    }
    if !newcomer {
        let is_equal = (mine.completed, mine.digest) == (theirs.completed, theirs.digest);
        let end = || worker.disagree(theirs.completed, vec![worker.id]);
        return if is_equal { Ok(None) } else { Err(end()) };
    }
    let shared = receive_shared_state(worker, source, plan.number).await?;
    strategy.load(shared.strategy.clone()).map_err(|_| worker.disagree(0, vec![worker.id]))?;
    worker.state.agreed = shared.agreed.clone();
    worker.state.round = shared.round;
    worker.state.version = shared.version;
    worker.adopt(shared.params.clone(), shared.optimizer.clone()).await;
    worker.skip_epochs(worker.samples_done());
    Ok(Some(source))
}

async fn receive_shared_state(
    worker: &Worker,
    source: WorkerId,
    plan: u64,
) -> Result<Arc<SharedState>, Interrupt> {
    let known = worker.port.look(|inbox| inbox.view_number());
    worker
        .port
        .until(Wanted::SharedState { from: source }, |inbox| {
            let end = if inbox.has_ended() { Interrupt::Over } else { Interrupt::ViewChanged };
            let is_void = inbox.has_ended() || inbox.view_number() > known;
            inbox.shared_state(source, plan).map(Ok).or(is_void.then_some(Err(end)))
        })
        .await
}
