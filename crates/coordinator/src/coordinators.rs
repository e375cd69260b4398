//! The coordinators that a worker knows: one is active, and a standby may take its place. The worker tries all of them in turn.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::connection::ClientError;

/// Shared by all that speak for one worker process.
#[derive(Clone, Debug)]
pub struct Coordinators(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    /// The one that is tried next is the first.
    addresses: Vec<String>,
    /// The newest incarnation of the coordinator that this worker has heard of. Older ones are not obeyed.
    newest: u64,
}

/// More are not remembered.
const ADDRESSES_MAX: usize = 16;

impl Coordinators {
    /// `addresses`: at least one.
    pub fn new(addresses: impl IntoIterator<Item = String>) -> Coordinators {
        let known = Coordinators(Arc::new(Mutex::new(Known { addresses: vec![], newest: 0 })));
        known.learn(addresses);
        known
    }

    /// All addresses, the one to try first at the front.
    pub fn all(&self) -> Vec<String> {
        self.lock().addresses.clone()
    }

    /// Adds addresses that were told. If there are too many, those that nobody speaks of any more are forgotten.
    pub fn learn(&self, told: impl IntoIterator<Item = String>) {
        let told: Vec<String> = told.into_iter().take(ADDRESSES_MAX).collect();
        let mut known = self.lock();
        for address in &told {
            if !known.addresses.contains(address) {
                known.addresses.push(address.clone());
            }
        }
        while known.addresses.len() > ADDRESSES_MAX {
            let old = known.addresses.iter().rposition(|it| !told.contains(it));
            known.addresses.remove(old.expect("no more were told than are remembered"));
        }
    }

    /// Whether a coordinator of this incarnation may give orders. Remembers it.
    pub fn is_newest(&self, incarnation: u64) -> bool {
        let mut known = self.lock();
        known.newest = known.newest.max(incarnation);
        known.newest == incarnation
    }

    fn answered(&self, address: &str) {
        let mut known = self.lock();
        known.addresses.retain(|it| it != address);
        known.addresses.insert(0, address.to_owned());
    }

    /// The address is tried last from now on.
    pub fn failed(&self, address: &str) {
        let mut known = self.lock();
        known.addresses.retain(|it| it != address);
        known.addresses.push(address.to_owned());
    }

    /// Tries one after the other until one answers. Another program at an address of several may be what has come there since; who is
    /// refused by a coordinator is refused by all.
    pub(crate) async fn try_all<T>(
        &self,
        mut attempt: impl AsyncFnMut(&str, bool) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let all = self.all();
        let mut worst = None;
        for address in &all {
            match attempt(address, all.len() == 1).await {
                Ok(answer) => {
                    self.answered(address);
                    return Ok(answer);
                }
                Err(error @ ClientError::Refused(_)) => return Err(error),
                Err(error) => {
                    // One that may pass is the one to report, as long as there is one.
                    let is_kept = worst.as_ref().is_some_and(ClientError::is_passing);
                    worst = if is_kept { worst } else { Some(error) };
                }
            }
        }
        Err(worst.unwrap_or_else(|| ClientError::Broken("no coordinator is known".to_owned())))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(coordinators: &Coordinators, answers: &str) -> (Vec<String>, Result<(), ClientError>) {
        let runtime = crate::connection::runtime().expect("a runtime");
        let mut tried = vec![];
        let ended = runtime.block_on(coordinators.try_all(async |address: &str, _| {
            tried.push(address.to_owned());
            match address == answers {
                true => Ok(()),
                false if address == "stranger" => Err(ClientError::Untrusted {
                    address: address.to_owned(),
                    why: "no certificate".to_owned(),
                }),
                false => Err(ClientError::Broken("away".to_owned())),
            }
        }));
        (tried, ended)
    }

    #[test]
    fn all_are_tried_and_the_one_that_answers_is_the_first_one_next_time() {
        let known = Coordinators::new(["a", "stranger"].map(str::to_owned));
        known.learn(["a", "b"].map(str::to_owned));
        let (order, ended) = tried(&known, "b");
        assert_eq!(order, ["a", "stranger", "b"]);
        assert!(ended.is_ok());
        assert_eq!(known.all(), ["b", "a", "stranger"]);
        known.failed("b");
        assert!(tried(&known, "nobody").1.is_err_and(|error| error.is_passing()));
        assert_eq!(known.all(), ["a", "stranger", "b"]);
    }

    #[test]
    fn addresses_that_nobody_speaks_of_any_more_make_room() {
        let known = Coordinators::new(["first".to_owned()]);
        for i in 0..100 {
            known.learn([format!("a{i}"), format!("b{i}")]);
        }
        let all = known.all();
        assert!(all.len() <= ADDRESSES_MAX && all[0] == "first");
        assert!(all.contains(&"a99".to_owned()) && all.contains(&"b99".to_owned()));
    }

    #[test]
    fn an_older_incarnation_is_not_obeyed() {
        let known = Coordinators::new(["a".to_owned()]);
        assert!(known.is_newest(2) && known.is_newest(2) && known.is_newest(3));
        assert!(!known.is_newest(2));
        assert!(known.clone().is_newest(3));
    }
}
