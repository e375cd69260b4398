//! Settling: how members continue after a loss. A member that misses the last result gets it from one that has it; then all
//! enter the exchange that was interrupted again, in the next view.

use std::sync::Arc;

use super::Worker;
use crate::agreed::chain;
use crate::coordination::Word;
use crate::exchange::Sum;
use crate::executor::{Interrupt, Wanted};
use crate::ids::WorkerId;
use crate::journal::Record;
use crate::private::Progress;
use crate::view::View;
use crate::wire::{Entry, Letter, Standing};

impl Worker {
    /// Whether a member of this worker's view was lost: nothing completes in it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.port.look(|inbox| inbox.view_number()) > self.view.number
    }

    /// Settles with the members of the newest view, until no other member is lost meanwhile.
    pub(crate) async fn settle(&mut self) -> Result<(), Interrupt> {
        loop {
            // A result that is here counts, whether it was used or not.
            self.collect();
            self.close();
            let newest = self.port.look(|inbox| match &inbox.view {
                Some(view) if !inbox.has_ended() && view.has(self.id) => Some(view.clone()),
                _ => None,
            });
            let Some(newest) = newest else { return Err(Interrupt::Over) };
            match self.settle_in(newest).await {
                Err(Interrupt::ViewChanged) => {}
                settled => return settled,
            }
        }
    }

    async fn settle_in(&mut self, view: Arc<View>) -> Result<(), Interrupt> {
        self.stand_in(view.clone());
        let mine = self.standing();
        let standings = self.gather(&view, mine.clone()).await?;
        let rows = || view.members.iter().copied().zip(standings.iter());
        let most = standings.iter().map(|standing| standing.completed).max().unwrap_or(0);
        let (source, theirs) =
            rows().find(|(_, it)| it.completed == most).expect("one has the most");
        if source == self.id {
            let behind = rows().filter(|(_, it)| it.completed + 1 == most);
            for (member, _) in behind.collect::<Vec<_>>() {
                let sum = self.newest_result().ok_or_else(|| self.disagree(most, vec![member]))?;
                self.port.send(member, Letter::Result { view: view.number, sum });
            }
        }
        if mine.completed + 1 == most {
            let sum = self.receive_result(source, view.number).await?;
            let is_next = sum.exchange == most && sum.view.has(self.id);
            if !is_next || chain(mine.digest, sum.digest()) != theirs.digest {
                return Err(self.disagree(most, vec![self.id]));
            }
            // What this worker had put in is part of the result.
            let pending = self.state.private.pending.as_mut();
            let Some(pending) = pending.filter(|pending| pending.number == most) else {
                return Err(self.disagree(most, vec![self.id]));
            };
            (pending.progress, pending.input) = (Progress::Finished(sum), None);
            // What was sent in the view that was closed has been reported.
            pending.bytes = 0;
        } else if mine.completed != most || mine.digest != theirs.digest {
            return Err(self.disagree(most, vec![self.id]));
        }
        if !view.members.iter().any(|member| self.state.agreed.view.has(*member)) {
            // Only newcomers are left, which had adopted everything before the others were lost.
            self.agree_on(view.clone());
        }
        let (who, round) = (self.id, self.state.round);
        let settled = Record::Settled { who, view: view.number, round, adopted: None };
        self.port.record(settled);
        self.port.tell(Word::Settled { view: view.number, exchange: most });
        self.enter();
        Ok(())
    }

    /// How many results this worker has, used or not, and their hash.
    pub(crate) fn standing(&self) -> Standing {
        let agreed = &self.state.agreed;
        let (completed, digest) = match self.unused_result() {
            Some(sum) => (agreed.exchanges + 1, chain(agreed.digest, sum.digest())),
            None => (agreed.exchanges, agreed.digest),
        };
        Standing { completed, digest, newcomer: false }
    }

    fn newest_result(&self) -> Option<Arc<Sum>> {
        self.unused_result().or(self.last.as_ref()).cloned()
    }

    /// The result of the pending exchange, if it is here.
    fn unused_result(&self) -> Option<&Arc<Sum>> {
        match &self.state.private.pending.as_ref()?.progress {
            Progress::Finished(sum) => Some(sum),
            Progress::Underway { .. } | Progress::Closed => None,
        }
    }

    async fn receive_result(&self, source: WorkerId, view: u64) -> Result<Arc<Sum>, Interrupt> {
        self.port
            .until(Wanted::Result { from: source }, |inbox| {
                let end = if inbox.has_ended() { Interrupt::Over } else { Interrupt::ViewChanged };
                let is_closed = inbox.has_ended() || inbox.view_number() > view;
                inbox.result(source, view).map(Ok).or(is_closed.then_some(Err(end)))
            })
            .await
    }

    /// Tells all members of a view where this worker stands, and learns where they do. `Err` if another view is in force
    /// meanwhile.
    pub(crate) async fn gather(
        &mut self,
        view: &Arc<View>,
        standing: Standing,
    ) -> Result<Arc<Vec<Standing>>, Interrupt> {
        let entry = Entry::Gather { standing };
        let steps = entry.steps(view.members.len());
        let bytes = u64::from(steps.count) * steps.bytes;
        let (entered, known) = (self.now(), self.port.look(|inbox| inbox.view_number()));
        let ticket = self.port.exchange(view.clone(), 0, entry);
        let wanted = Wanted::Exchange { view: view.number, number: 0 };
        let standings = self
            .port
            .until(wanted, |inbox| {
                if let Some(standings) = inbox.gathered(ticket) {
                    return Some(Ok(standings));
                }
                let end = if inbox.has_ended() { Interrupt::Over } else { Interrupt::ViewChanged };
                (inbox.has_ended() || inbox.view_number() > known).then(|| {
                    inbox.abandon(ticket);
                    Err(end)
                })
            })
            .await
            .inspect_err(|_| self.port.withdraw(view.number, 0))?;
        let (who, view, exchange, blocked) = (self.id, view.number, 0, entered);
        self.port.record(Record::Exchanged { who, view, exchange, entered, blocked, bytes });
        Ok(standings)
    }
}
