//! The servers of an etcd cluster: one of them is asked, and the next one if it does not answer.

use std::time::{Duration, Instant};

use prost::Message;
use rustls::ClientConfig;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::EtcdError;
use crate::connection::{ClientError, Connection, Target};

pub(super) struct Servers {
    addresses: Vec<String>,
    /// Which of them is asked.
    at: usize,
    connection: Option<Connection>,
    /// `None`: in the clear.
    tls: Option<ClientConfig>,
    runtime: Runtime,
}

/// A server that takes longer is cut off, or has no leader: another one may know more.
const ANSWER: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

impl Servers {
    pub fn new(addresses: &[String], tls: Option<ClientConfig>) -> Result<Servers, EtcdError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| EtcdError::System(error.to_string()))?;
        Ok(Servers { addresses: addresses.to_vec(), at: 0, connection: None, tls, runtime })
    }

    /// Asks once: the server that answered last, or the next one.
    pub fn ask<A: Message + Default>(
        &mut self,
        method: &'static str,
        question: &impl Message,
    ) -> Result<A, EtcdError> {
        let Servers { addresses, at, connection, tls, runtime } = self;
        let address = addresses[*at % addresses.len()].clone();
        let asked = async {
            if connection.is_none() {
                let target = Target::new(&address, tls.clone(), None).checking_name();
                *connection = Some(target.connect().await?);
            }
            let open = connection.as_mut().expect("it was just made");
            let answer = open.unary(method, question.encode_to_vec().into()).await;
            Ok::<_, ClientError>(answer)
        };
        let asked = runtime.block_on(async {
            let answered = timeout(ANSWER, asked).await;
            let late = || format!("no answer within {} s", ANSWER.as_secs());
            answered.unwrap_or_else(|_| Err(ClientError::Broken(late())))
        });
        let error = match asked {
            Ok(Ok(bytes)) => match A::decode(bytes) {
                Ok(answer) => return Ok(answer),
                Err(error) => EtcdError::Answer { address, why: error.to_string() },
            },
            Ok(Err(status)) => of_status(address, &status),
            Err(ClientError::Untrusted { why, .. }) => EtcdError::Untrusted { address, why },
            Err(error) => EtcdError::Unreachable { address, why: why(&error) },
        };
        if error.is_passing() {
            self.connection = None;
            self.at += 1;
        } else if matches!(error, EtcdError::TooMuch) {
            // What was not read would be in the way.
            self.connection = None;
        }
        Err(error)
    }

    /// Asks until there is an answer, or the time is over. `waits` is called once, when the first attempt failed.
    pub fn insist<A: Message + Default>(
        &mut self,
        method: &'static str,
        question: &impl Message,
        until: Instant,
        mut waits: impl FnMut(&EtcdError),
    ) -> Result<A, EtcdError> {
        let mut failures = 0;
        loop {
            match self.ask(method, question) {
                // A round through all servers is no reason to worry: their leader may have changed.
                Err(error) if error.is_passing() && Instant::now() < until => {
                    failures += 1;
                    if failures == self.addresses.len() + 1 {
                        waits(&error);
                    }
                    std::thread::sleep(PAUSE);
                }
                answer => return answer,
            }
        }
    }
}

fn why(error: &ClientError) -> String {
    match error {
        ClientError::Unreachable { why, .. } | ClientError::Untrusted { why, .. } => why.clone(),
        ClientError::Broken(why) | ClientError::Refused(why) => why.clone(),
        ClientError::Over | ClientError::Encrypted { .. } | ClientError::Unencrypted { .. } => {
            error.to_string()
        }
    }
}

fn of_status(address: String, status: &Status) -> EtcdError {
    let why = status.message().to_owned();
    match status.code() {
        Code::ResourceExhausted if why.contains("space exceeded") => EtcdError::Full,
        // Longer than one answer may be.
        Code::OutOfRange => EtcdError::TooMuch,
        Code::NotFound | Code::InvalidArgument | Code::FailedPrecondition => {
            EtcdError::Answer { address, why }
        }
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
            EtcdError::Answer { address, why }
        }
        _ => EtcdError::Unreachable { address, why },
    }
}
