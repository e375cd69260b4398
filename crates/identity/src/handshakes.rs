//! Bounds how many strangers a port serves at once: connections that have not shown a certificate yet.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Handshakes {
    per_address_max: usize,
    total_max: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One handshake under way. Drop it when the other side is authenticated, or gone.
#[derive(Debug)]
pub struct Handshake {
    from: IpAddr,
    all: Handshakes,
}

impl Handshakes {
    pub fn new(per_address_max: usize, total_max: usize) -> Handshakes {
        Handshakes { per_address_max, total_max, open: Arc::default() }
    }

    /// `None` if too many are under way: the connection should be closed without a word.
    pub fn begin(&self, from: IpAddr) -> Option<Handshake> {
        let mut open = self.open.lock().expect("no holder panics");
        let total: usize = open.values().sum();
        let here = open.get(&from).copied().unwrap_or(0);
        if total >= self.total_max || here >= self.per_address_max {
            return None;
        }
        open.insert(from, here + 1);
        Some(Handshake { from, all: self.clone() })
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut open = self.all.open.lock().expect("no holder panics");
        if let Some(count) = open.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_cannot_take_all_places_and_all_together_have_a_limit() {
        let handshakes = Handshakes::new(2, 3);
        let [a, b, c] = [1, 2, 3].map(|it| IpAddr::from([10, 0, 0, it]));
        let held: Vec<_> =
            [a, a, a, b, c, b].into_iter().map(|from| handshakes.begin(from)).collect();
        let begun: Vec<bool> = held.iter().map(Option::is_some).collect();
        assert_eq!(begun, [true, true, false, true, false, false]);
        drop(held);
        assert!(handshakes.begin(c).is_some());
        assert!(handshakes.open.lock().expect("no holder panics").is_empty());
    }
}
