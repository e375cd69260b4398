//! Joining a job: a process shows a token, or the certificate of an earlier time, and gets an id and a certificate.

use std::time::{Duration, Instant};

use paceline_identity::{Credentials, Key, Nonce, Token, Trust, join_client, stream_client};
use paceline_runtime::WorkerId;
use tokio::time::timeout;

use crate::connection::{ANSWER, ClientError, PAUSE_FIRST, PAUSE_MAX, Target, runtime};
use crate::coordinators::Coordinators;
use crate::messages::{Admitted, Described, JOIN, Join, LOOK, Look};
use crate::reading::ClockReading;

/// Why the coordinator should let this process in.
#[derive(Clone)]
pub enum Proof {
    Token(Token),
    /// It was in the job before, and was put out.
    Certificate(Credentials),
}

/// A process that wants to join. Repeating a call with the same invitation is safe: it is one join.
pub struct Invitation {
    coordinators: Coordinators,
    proof: Proof,
    version: String,
    is_plain: bool,
    key: Key,
    nonce: Nonce,
}

/// A worker's place in a job.
#[derive(Clone)]
pub struct Place {
    pub who: WorkerId,
    pub coordinators: Coordinators,
    /// Where peers are told to reach this worker.
    pub address: String,
    /// `None` without TLS.
    pub credentials: Option<Credentials>,
    /// The coordinator's clock, as far as the answer says.
    pub clock: ClockReading,
    pub patience: Duration,
}

impl Invitation {
    /// `is_plain`: without TLS. The token is then sent in the clear.
    pub fn new(
        coordinators: &Coordinators,
        proof: Proof,
        version: &str,
        is_plain: bool,
    ) -> Invitation {
        let (key, nonce) = (Key::generate(), Nonce::random());
        let (coordinators, version) = (coordinators.clone(), version.to_owned());
        if let Proof::Token(token) = &proof {
            coordinators.learn(token.addresses.clone());
        }
        Invitation { coordinators, proof, version, is_plain, key, nonce }
    }

    fn token(&self) -> Option<String> {
        match &self.proof {
            Proof::Token(token) => Some(token.to_string()),
            Proof::Certificate(_) => None,
        }
    }

    fn target(&self) -> Target {
        let tls = match &self.proof {
            _ if self.is_plain => None,
            Proof::Token(token) => Some(join_client(token.fingerprint)),
            Proof::Certificate(credentials) => Some(stream_client(credentials)),
        };
        Target::new("", tls, None)
    }

    /// Asks what the job is. Tries for so long if the coordinator cannot be reached.
    pub fn look(&self, gives_up_after: Duration) -> Result<Described, ClientError> {
        let (version, token) = (self.version.clone(), self.token());
        let look = Look { version, token, request: self.key.request(self.nonce) };
        Ok(self.call(LOOK, &look, gives_up_after)?.0)
    }

    /// Joins. `address`: where this process listens for peers; `facts`: what it knows of the job's model and data.
    pub fn join(
        self,
        address: &str,
        facts: &str,
        gives_up_after: Duration,
    ) -> Result<Place, ClientError> {
        let join = Join {
            version: self.version.clone(),
            token: self.token(),
            request: self.key.request(self.nonce),
            address: address.to_owned(),
            facts: facts.to_owned(),
        };
        let (admitted, [sent, back]): (Admitted, _) = self.call(JOIN, &join, gives_up_after)?;
        let Admitted { who, certificate, authority, job, address, patience, .. } = admitted;
        let clock = ClockReading::of_round_trip(sent, admitted.received, admitted.now, back);
        let coordinators = self.coordinators;
        coordinators.learn(admitted.coordinators);
        // It has stored that this worker joins, so no other one can have been newer then.
        coordinators.is_newest(admitted.incarnation);
        let refused = |why: &str| ClientError::Untrusted {
            address: coordinators.all().swap_remove(0),
            why: why.to_owned(),
        };
        let credentials = match certificate {
            None if self.is_plain => None,
            None => return Err(refused("it sent no certificate")),
            Some(certificate) => {
                let trust =
                    Trust::new(authority, job).map_err(|error| refused(&error.to_string()))?;
                let made = Credentials::new(self.key, certificate, trust);
                Some(made.map_err(|error| refused(&error.to_string()))?)
            }
        };
        Ok(Place { who, coordinators, address, credentials, clock, patience })
    }

    /// Returns the answer, when the question was sent, and when the answer was here.
    fn call<T: serde::de::DeserializeOwned>(
        &self,
        method: &'static str,
        message: &impl serde::Serialize,
        gives_up_after: Duration,
    ) -> Result<(T, [Instant; 2]), ClientError> {
        let target = self.target();
        let runtime = runtime()?;
        let deadline = Instant::now() + gives_up_after;
        let mut pause = PAUSE_FIRST;
        loop {
            let attempt = async |address: &str, is_only: bool| {
                let target = target.at(address, is_only, ANSWER);
                let asked = async {
                    let mut connection = target.connect().await?;
                    let sent = Instant::now();
                    let answer = connection.ask(method, message).await?;
                    Ok((answer, [sent, Instant::now()]))
                };
                let answered = timeout(ANSWER, asked).await;
                let no_answer = || Err(ClientError::Broken("no answer".to_owned()));
                match answered.unwrap_or_else(|_| no_answer()) {
                    Err(error) => Err(target.explain(error).await),
                    answer => answer,
                }
            };
            match runtime.block_on(self.coordinators.try_all(attempt)) {
                Err(error) if error.is_passing() && Instant::now() + pause < deadline => {
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(PAUSE_MAX);
                }
                answer => return answer,
            }
        }
    }
}
