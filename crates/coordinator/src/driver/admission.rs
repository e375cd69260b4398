//! Who may join, and with which certificate.

use std::time::{Duration, SystemTime};

use paceline_identity::{Admission, Certificate, Name, Request, Role, Token, TokenChange};
use paceline_runtime::WorkerId;
use paceline_runtime::coordination::Input;

use super::{After, Driver, Happened, json};
use crate::incoming::Reply;
use crate::messages::{Admitted, Answer, Down, Join};

impl Driver {
    /// Whether somebody may join, or one sentence that says why not.
    pub(super) fn check(
        &self,
        token: Option<&Token>,
        known: Option<WorkerId>,
        version: &str,
        request: &Request,
    ) -> Result<Admission, String> {
        if version != self.config.version {
            return Err(format!(
                "this worker runs version {version}, the coordinator {}",
                self.config.version
            ));
        }
        match (token, known) {
            (None, None) => return Err("a token is needed to join".to_owned()),
            (None, Some(who)) if self.memory.banned.contains(&who) => {
                return Err(format!("worker {who} was banned from this job"));
            }
            _ => {}
        }
        let admission = self.memory.tokens.check(token, request, SystemTime::now());
        admission.map_err(|refusal| refusal.to_string())
    }

    /// Whether somebody might join, if the job were not over.
    pub(super) fn is_too_late(
        &self,
        token: Option<&Token>,
        known: Option<WorkerId>,
        version: &str,
        request: &Request,
    ) -> bool {
        self.coordinator.is_over()
            && self.check(token, known, version, request) == Ok(Admission::New)
    }

    pub(super) fn join(
        &mut self,
        token: Option<Token>,
        known: Option<WorkerId>,
        join: Join,
        reply: Reply<Admitted>,
    ) {
        if self.is_too_late(token.as_ref(), known, &join.version, &join.request) {
            return drop(reply.send(Answer::Over));
        }
        match self.try_join(token.as_ref(), known, join) {
            Err(why) => drop(reply.send(Answer::Refused(why))),
            Ok(admitted) => {
                let reply = move || drop(reply.send(Answer::Yes(admitted)));
                self.after(After::Reply(Box::new(reply)));
            }
        }
    }

    fn try_join(
        &mut self,
        token: Option<&Token>,
        known: Option<WorkerId>,
        join: Join,
    ) -> Result<Admitted, String> {
        let Join { version, request, address, facts, .. } = join;
        let who = match self.check(token, known, &version, &request)? {
            Admission::Again(who) => who,
            Admission::New => {
                self.learn(facts)?;
                let admitted = self.admit(token, known, &request, &address);
                admitted.ok_or_else(|| "the job takes no more workers".to_owned())?
            }
        };
        // It may have joined again, from elsewhere.
        self.place(who, &address);
        self.happening.push(Happened::Joined { who, address: address.clone() });
        let authority = self.config.authority.as_ref();
        Ok(Admitted {
            who,
            certificate: self.certify(who, &request),
            authority: authority.map_or(vec![], |authority| authority.certificate().to_vec()),
            job: self.memory.job.clone(),
            address,
            // The port says when the question came and when the answer goes.
            received: Duration::ZERO,
            now: Duration::ZERO,
            patience: self.config.rules.patience,
            incarnation: self.coordinator.state().incarnation(),
            coordinators: self.coordinators.clone(),
        })
    }

    /// Compares what a newcomer knows of the job with what the first worker knew. The first one says how many samples there
    /// are, before it joins.
    fn learn(&mut self, facts: String) -> Result<(), String> {
        let samples_total = (self.config.check_facts)(self.memory.facts.as_deref(), &facts)?;
        if self.memory.facts.is_none() {
            for line in (self.first_lines)(&facts) {
                self.lines.extend(json(&line));
                self.lines.push(b'\n');
            }
            self.memory.facts = Some(facts.clone());
            self.batch.facts = Some(facts);
            self.input(Input::Sized { samples_total });
        }
        Ok(())
    }

    /// Gives a newcomer its id.
    fn admit(
        &mut self,
        token: Option<&Token>,
        known: Option<WorkerId>,
        request: &Request,
        address: &str,
    ) -> Option<WorkerId> {
        if token.is_none()
            && let Some(before) = known
        {
            // It joins anew, so it has dropped what it was before.
            self.lose(before);
        }
        let output = self.coordinator.step(self.clock.now(), Input::Hello);
        let who = output.admitted;
        // Orders that name the newcomer carry its address.
        if let Some(who) = who {
            self.place(who, address);
        }
        self.carry_out(output);
        let (token, nonce, key) =
            (token.map(|token| token.id), request.nonce, request.key_digest());
        self.change_tokens(TokenChange::Joined { token, nonce, key, who: who? });
        who
    }

    fn place(&mut self, who: WorkerId, address: &str) {
        self.memory.addresses.insert(who, address.to_owned());
        self.batch.addresses.insert(who, address.to_owned());
    }

    fn certify(&self, who: WorkerId, request: &Request) -> Option<Certificate> {
        let name = Name { job: self.memory.job.clone(), role: Role::Worker(who) };
        let authority = self.config.authority.as_ref()?;
        Some(authority.issue(&name, request, SystemTime::now()))
    }

    pub(super) fn renew(&mut self, from: WorkerId, session: u64, request: &Request) {
        let is_its_own = request.verify().is_ok() && self.memory.tokens.is_key_of(from, request);
        if !is_its_own || self.memory.banned.contains(&from) {
            return;
        }
        if let (Some(lane), Some(certificate)) =
            (self.lane(from, session), self.certify(from, request))
        {
            lane.send(&Down::Renewed(certificate));
        }
    }

    /// Workers could not connect any more when the coordinator's own certificate has ended.
    pub(super) fn renew_own(&self) {
        let now = SystemTime::now();
        if let (Some(credentials), Some(authority)) = (&self.credentials, &self.config.authority)
            && credentials.is_old(now)
        {
            let certificate = authority.issue(credentials.name(), &credentials.request(), now);
            credentials.renew(certificate).expect("the authority has just made it");
        }
    }
}
