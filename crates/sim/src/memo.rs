//! Remembers what equal replicas have just computed, so that a thousand of them stay one vector.
//!
//! Only a simulator can profit: it runs many workers in one process, and synchronous ones hold equal replicas.

use std::sync::Arc;

use paceline_learn::Vector;
use paceline_runtime::Sum;
use paceline_runtime::edge::Replica;
use paceline_runtime::journal::fingerprint;

#[derive(Default)]
pub struct Memo {
    descents: Vec<Descent>,
    fingerprint: Option<(Arc<Vector>, u64)>,
}

struct Descent {
    before: Replica,
    along: Arc<Sum>,
    rate: f32,
    after: Replica,
}

/// Members of one exchange take their steps within a round, so a few descents are enough.
const DESCENTS: usize = 4;

impl Memo {
    /// The replica after a step along `along`; `step` computes it unless an equal replica has just
    /// taken the same step.
    pub fn descend(
        &mut self,
        before: Replica,
        along: &Arc<Sum>,
        rate: f32,
        step: &dyn Fn(&Replica) -> Replica,
    ) -> Replica {
        let known = self.descents.iter().find(|known| {
            Arc::ptr_eq(&known.along, along)
                && known.rate.to_bits() == rate.to_bits()
                && Arc::ptr_eq(&known.before.0, &before.0)
                && Arc::ptr_eq(&known.before.1, &before.1)
        });
        if let Some(known) = known {
            return known.after.clone();
        }
        let after = step(&before);
        if self.descents.len() == DESCENTS {
            self.descents.remove(0);
        }
        self.descents.push(Descent { before, along: along.clone(), rate, after: after.clone() });
        after
    }

    pub fn fingerprint(&mut self, params: &Arc<Vector>) -> u64 {
        match &self.fingerprint {
            Some((known, print)) if Arc::ptr_eq(known, params) => *print,
            _ => {
                let print = fingerprint(params);
                self.fingerprint = Some((params.clone(), print));
                print
            }
        }
    }
}
