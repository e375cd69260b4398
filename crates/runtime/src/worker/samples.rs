//! Samples and gradients: where a worker's batches come from.

use std::time::Duration;

use paceline_learn::gradient::joint_weight;
use paceline_learn::{Gradient, mix};

use super::{Mine, Share, Worker, steps};
use crate::coordination::{Lease, Word};
use crate::executor::Wanted;
use crate::ids::Ticket;
use crate::journal::Record;
use crate::ledger::{Ledger, even_share};
use crate::plan::Owner;
use crate::spans::Spans;

/// What ends a wait for samples.
enum Found {
    Lease(Lease),
    Missing,
    Wish,
}

/// A first guess of the base batches in an open batch, until one has been measured.
const FIRST_EXPECTED_BATCHES: u64 = 4;

impl Worker {
    /// The gradient at the replica over the samples of `share`; `None` if no sample is free.
    pub async fn gradient(&mut self, share: Share) -> Option<Mine> {
        self.evaluate_within_round().await;
        let is_leased = matches!(share, Share::Leased { .. });
        let spans = match &share {
            Share::Even(total) => {
                self.say_bye_if_ordered();
                self.deal_evenly(*total);
                let rank = self.state.agreed.view.rank(self.id);
                let rank = rank.expect("a worker is one of the agreed members");
                self.draw(even_share(*total, self.members().len(), rank))
            }
            Share::ByRank(shares) => {
                self.say_bye_if_ordered();
                self.deal(shares);
                let rank = self.state.agreed.view.rank(self.id);
                self.draw(shares[rank.expect("a worker is one of the agreed members")])
            }
            Share::Lane(samples) => {
                self.say_bye_if_ordered();
                self.draw(*samples)
            }
            Share::Leased { samples, ahead } => self.leased(*samples, *ahead).await,
        };
        if spans.is_empty() {
            return None;
        }
        let since = self.now();
        let (at, updates) = (self.place(&share), std::mem::take(&mut self.updates));
        // Shares of a thousand members are not kept while a thousand gradients are computed.
        drop(share);
        let ticket = self.port.compute(at, spans.clone(), updates);
        let (gradient, took) = self.computed(ticket).await;
        let samples = spans.len();
        let (who, round) = (self.id, Some(self.state.round));
        let recorded = self.plan.fingerprints.then(|| spans.clone());
        self.port.record(Record::Computed { who, since, samples, round, spans: recorded });
        let took = took.unwrap_or(self.now() - since);
        let private = &mut self.state.private;
        private.compute += took;
        private.weight =
            joint_weight((private.samples, private.weight), (samples, gradient.weight));
        private.samples += samples;
        private.loss_sum += gradient.loss_sum;
        Some(Mine { gradient, spans, version: self.state.version, is_leased })
    }

    /// Waits for a gradient. If a host computes it, it is shown the lease that was asked for ahead as soon as that is here.
    async fn computed(&self, ticket: Ticket) -> (Gradient, Option<Duration>) {
        let mut ahead = self.lease.filter(|_| self.plan.replicas == Owner::Theirs);
        loop {
            let found = self.port.until(Wanted::Gradient, |inbox| {
                let gradient = inbox.gradient(ticket).map(Ok);
                gradient.or_else(|| Some(Err(inbox.known_lease(ahead?)?)))
            });
            match found.await {
                Ok(gradient) => return gradient,
                Err(spans) => {
                    self.port.show_host(spans);
                    ahead = None;
                }
            }
        }
    }

    /// Deals the next positions to the members' lanes, without a list of the shares of a thousand members.
    fn deal_evenly(&mut self, total: u64) {
        self.deals += 1;
        let agreed = &mut self.state.agreed;
        let (before, members) = (&agreed.ledger, &agreed.view.members);
        let rounds = self.plan.rounds_ahead;
        agreed.ledger = self.port.once(before, None, mix(steps::DEAL_EVENLY ^ total), || {
            let mut ledger = Ledger::clone(before);
            ledger.deal_evenly(members, total, rounds);
            ledger
        });
    }

    /// Deals the next positions to the members' lanes. All members deal alike, because shares and ledger are agreed.
    fn deal(&mut self, shares: &[u64]) {
        self.deals += 1;
        let agreed = &mut self.state.agreed;
        assert_eq!(shares.len(), agreed.view.members.len(), "each member has a share");
        // Shares follow from the agreed view and what is agreed beside it; the total tells strategies apart that err.
        let total: u64 = shares.iter().sum();
        let name = steps::DEAL ^ mix(agreed.view.number) ^ total;
        let (before, members) = (&agreed.ledger, &agreed.view.members);
        let rounds = self.plan.rounds_ahead;
        agreed.ledger = self.port.once(before, None, name, || {
            let mut ledger = Ledger::clone(before);
            ledger.deal_shares(members, shares, rounds);
            ledger
        });
    }

    /// Gives every member a lane, if the strategy draws from lanes and one of the members has none.
    pub(super) fn open_lanes(&mut self) {
        let Some(batch) = self.lane_batch else { return };
        let agreed = &mut self.state.agreed;
        let (before, members) = (&agreed.ledger, &agreed.view.members);
        agreed.ledger = self.port.once(before, None, steps::OPEN ^ batch, || {
            let mut ledger = Ledger::clone(before);
            if !ledger.has_lanes_of(members) {
                // How long a sum takes is not known yet; a lane that is too long is better than one that runs dry.
                let each = FIRST_EXPECTED_BATCHES * batch.max(1);
                ledger.fill_lanes(members.iter().map(|who| (*who, each)));
            }
            ledger
        });
    }

    /// Draws the next positions of this worker's lane.
    fn draw(&mut self, samples: u64) -> Spans {
        let lane = self.state.agreed.ledger.lane(self.id);
        let spans =
            lane.map(|lane| lane.get(self.state.private.drawn, samples)).unwrap_or_default();
        self.state.private.drawn += spans.len();
        spans
    }

    /// What this worker will probably compute next: the rest of its lane, and where nothing is dealt ahead, what the same
    /// shares would deal to it. A lease that was asked for ahead is not here yet.
    pub(super) fn samples_ahead(&self, share: &Share) -> Spans {
        let ledger = &self.state.agreed.ledger;
        let mut next = None;
        if self.plan.rounds_ahead == 0 {
            match share {
                Share::Even(total) => {
                    next.insert(Ledger::clone(ledger)).deal_evenly(self.members(), *total, 0);
                }
                Share::ByRank(shares) => {
                    next.insert(Ledger::clone(ledger)).deal_shares(self.members(), shares, 0);
                }
                Share::Lane(_) | Share::Leased { .. } => {}
            }
        }
        let lane = next.as_ref().unwrap_or(ledger).lane(self.id);
        lane.map(|lane| lane.get(self.state.private.drawn, u64::MAX)).unwrap_or_default()
    }

    async fn leased(&mut self, samples: u64, ahead: bool) -> Spans {
        let (me, port) = (self.id, self.port.clone());
        let (has_said_bye, served) = (self.said_bye, self.save_served);
        let (members_min, saves) = (self.plan.members_min, self.plan.saves.is_some());
        let ticket = self.lease.take().unwrap_or_else(|| port.lease(samples));
        let lease = loop {
            let found = port
                .until(Wanted::Lease, |inbox| {
                    // A worker that is let go in the middle of a round gets no more samples.
                    let is_gone = inbox.has_ended() || !inbox.is_member(me);
                    let lease = inbox.lease(ticket).or(is_gone.then_some(Lease::Over));
                    // With too few members no lease comes, for hours perhaps; what the user wishes is done between rounds.
                    let members = inbox.view.as_ref().map_or(0, |view| view.members.len());
                    let is_wished = (inbox.leave_ordered && !has_said_bye)
                        || (inbox.save_ordered > served && saves);
                    let ends_round = members < members_min && is_wished;
                    let returns = (!inbox.missing.is_empty()).then_some(Found::Missing);
                    let found = lease.map(Found::Lease).or(returns);
                    found.or(ends_round.then_some(Found::Wish))
                })
                .await;
            match found {
                Found::Lease(lease) => break lease,
                // What is returned now may be what is waited for.
                Found::Missing => self.return_missing(),
                Found::Wish => {
                    self.lease = Some(ticket);
                    return Spans::new();
                }
            }
        };
        match lease {
            Lease::Yours { spans, count } => {
                self.clock = count;
                self.in_hand.add(&spans);
                if ahead {
                    self.lease = Some(self.port.lease(samples));
                }
                spans
            }
            Lease::Over => {
                self.out_of_samples = true;
                Spans::new()
            }
        }
    }

    /// Returns leased samples that will not be used.
    pub fn give_back(&mut self, spans: Spans) {
        self.in_hand.subtract(&spans);
        self.port.tell(Word::Return { holder: self.id, spans });
    }

    /// Returns samples that a lost server had applied and its successor does not hold: this worker no longer has
    /// their gradients.
    pub(crate) fn return_missing(&mut self) {
        let (mut missing, since) =
            self.port.look(|inbox| (std::mem::take(&mut inbox.missing), inbox.missing_since));
        if missing.is_empty() {
            return;
        }
        missing.subtract(&self.in_hand);
        // Samples that this worker has pushed again since: the order may arrive later than the server's reply.
        let (reign, done) = &self.center_known;
        if *reign >= since {
            missing.subtract(done);
        }
        if let Some(ticket) = self.lease
            && let Some(ahead) = self.port.look(|inbox| inbox.known_lease(ticket))
        {
            missing.subtract(&ahead);
        }
        if !missing.is_empty() {
            self.give_back(missing);
        }
    }

    /// Returns the samples that were leased ahead, as soon as they arrive.
    pub(crate) async fn give_back_lease(&mut self) {
        let Some(ticket) = self.lease.take() else { return };
        let me = self.id;
        let leased = self
            .port
            .until(Wanted::Lease, |inbox| {
                // The coordinator has freed the leases of a worker that it has let go.
                let is_gone = inbox.has_ended() || !inbox.is_member(me);
                inbox.lease(ticket).map(Some).or(is_gone.then_some(None))
            })
            .await;
        if let Some(Lease::Yours { spans, .. }) = leased {
            self.give_back(spans);
        }
    }
}
