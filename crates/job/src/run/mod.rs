//! Watches a run, on any cluster, until it ends: journal, results, evaluations, checkpoints, the wish to stop.

pub mod curve;
mod deployed;
pub mod evaluator;
pub mod observer;
pub mod recovery;
mod requests;
mod save_requests;
pub mod totals;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline_runtime::edge::ClusterOutput;

use crate::checkpoint::Writer;
use crate::error::RunError;
use crate::run_result::Losses;
use observer::Observer;

pub use deployed::Deployed;
pub use requests::{Answer, Request, Requests};
pub(crate) use save_requests::SaveRequests;

/// A job that runs on some cluster.
pub(crate) trait Running {
    /// What happens next. A real cluster waits for it, but only briefly.
    fn next(&mut self) -> Result<Next, RunError>;
    /// Asks that the job end after this round.
    fn stop(&mut self);
    /// Asks for a snapshot.
    fn save(&mut self);
    /// Puts out a member, on the user's wish; or says why that cannot be.
    fn put_out(&mut self, request: Request) -> Result<(), String>;
}

pub(crate) enum Next {
    Output(ClusterOutput),
    /// Nothing has happened for a while.
    Idle,
    /// All workers have ended and everything has been put out.
    Ended,
}

/// The answer to a wish that cannot be fulfilled.
const NOTHING_TO_SAVE: &str =
    "no worker is left, so there is nothing to save; the newest checkpoint stays what it was";

/// Looks after a run while it lasts.
pub(crate) struct Watch<'a> {
    pub observer: Observer<'a>,
    pub writer: Option<Writer>,
    pub save_requests: Option<SaveRequests>,
    pub requests: Option<Requests>,
    /// The run was asked to stop.
    pub stopped: bool,
}

impl Watch<'_> {
    /// Watches until all workers have ended. When `stop` is set, the run ends after the current round.
    pub fn until_ended(
        &mut self,
        run: &mut dyn Running,
        stop: &AtomicBool,
    ) -> Result<(), RunError> {
        loop {
            let flow = match run.next()? {
                Next::Output(output) => match self.take(output) {
                    ControlFlow::Continue(()) => self.observer.poll_evaluations(),
                    broken_off => broken_off,
                },
                Next::Idle => self.observer.poll_evaluations(),
                Next::Ended => {
                    return self.observer.totals.failure.clone().map_or(Ok(()), Err);
                }
            };
            if !self.stopped && (flow.is_break() || stop.load(Ordering::Relaxed)) {
                self.stopped = true;
                run.stop();
            }
            if let Some(writer) = &mut self.writer {
                writer.pass_on();
            }
            self.serve(run);
            let rounds = || self.observer.totals.rounds();
            if self.save_requests.as_mut().is_some_and(|requests| requests.is_due(rounds)) {
                run.save();
            }
        }
    }

    /// Does what the user asks of the run, or of single workers.
    fn serve(&mut self, run: &mut dyn Running) {
        let Some(requests) = &self.requests else { return };
        while let Ok((request, answer)) = requests.try_recv() {
            let members = &self.observer.totals.members;
            let Some(who) = request.worker() else {
                answer(match members.len() {
                    0 => Err(NOTHING_TO_SAVE.to_owned()),
                    _ => {
                        run.save();
                        Ok("a checkpoint is being saved".to_owned())
                    }
                });
                continue;
            };
            let refusal = match members.contains(&who) {
                false => Some(format!("worker {who} is no member now")),
                // Without a member nothing is left of what was learned.
                true if members.len() == 1 => {
                    Some(format!("worker {who} is the only member; stop the run instead"))
                }
                true => None,
            };
            if let Some(why) = refusal {
                answer(Err(why));
                continue;
            }
            let done =
                if request.is_ban() { "is banned" } else { "is put out, and may join again" };
            answer(run.put_out(request).map(|()| format!("worker {who} {done}")));
        }
    }

    fn take(&mut self, output: ClusterOutput) -> ControlFlow<()> {
        match (output, &mut self.writer) {
            (ClusterOutput::Line(line), _) => return self.observer.observe(&line),
            (ClusterOutput::Evaluate { at, samples, ends_epoch, parts: 1, replicas, .. }, _) => {
                return self.observer.evaluate((at, samples), ends_epoch, &replicas);
            }
            (ClusterOutput::Evaluate { by, at, samples, parts, replicas, .. }, _) => {
                return self.observer.evaluate_part((at, samples), (by, parts), replicas);
            }
            // Everything that led to the snapshot has been observed: if training has diverged, the older
            // checkpoints are worth more than this one.
            (ClusterOutput::Snapshot(snapshot), Some(writer)) if self.observer.is_astray() => {
                writer.refuse(&snapshot);
            }
            (ClusterOutput::Snapshot(snapshot), Some(writer)) => {
                let totals = &self.observer.totals;
                let losses = Losses { first: totals.curve.began(), last: totals.curve.last() };
                writer.offer(snapshot, losses, totals.past());
            }
            (ClusterOutput::Snapshot(_), None) => {}
        }
        ControlFlow::Continue(())
    }
}
