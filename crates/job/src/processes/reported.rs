//! Results whose line is in the journal. Every contributor reports each result, and the first report is its line.

use std::collections::BTreeSet;

use paceline_runtime::{Line, Record};

#[derive(Default)]
pub struct Reported {
    results: BTreeSet<(u64, u64)>,
    /// The newest exchange and the newest view that are no longer remembered.
    forgotten: (u64, u64),
}

/// Results that are remembered: members differ by one exchange at most.
const REMEMBERED: usize = 1024;

impl Reported {
    /// Whether this line is no repeated report of a result.
    pub fn is_first(&mut self, line: &Line) -> bool {
        let Record::Applied { result: Some(name), .. } = &line.record else { return true };
        if name.exchange <= self.forgotten.0 && name.view <= self.forgotten.1 {
            // From a process that stood still for long: the others have reported this exchange. (A job that starts over counts
            // exchanges anew, in newer views.)
            return false;
        }
        let is_first = self.results.insert((name.exchange, name.view));
        if self.results.len() > REMEMBERED
            && let Some((exchange, view)) = self.results.pop_first()
        {
            self.forgotten = (exchange, view.max(self.forgotten.1));
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_runtime::journal::ResultName;
    use paceline_runtime::{Spans, WorkerId};

    use super::*;

    #[test]
    fn a_result_has_one_line_and_that_of_another_view_is_another_result() {
        let line = |exchange, view| Line {
            at: Duration::ZERO,
            record: Record::Applied {
                who: WorkerId(0),
                version: 1,
                spans: Spans::one(0, 4),
                loss_sum: 1.0,
                weight: None,
                staleness: 0,
                rate: 0.1,
                round: Some(1),
                result: Some(ResultName { exchange, view }),
            },
        };
        let mut reported = Reported::default();

        assert!(reported.is_first(&line(1, 1)));
        assert!(!reported.is_first(&line(1, 1)), "another contributor reports it");
        assert!(reported.is_first(&line(1, 2)), "made again after a loss");
        for exchange in 2..3000 {
            assert!(reported.is_first(&line(exchange, 2)));
            assert!(!reported.is_first(&line(exchange, 2)));
        }
        for view in [1, 2] {
            assert!(!reported.is_first(&line(900, view)), "reported long after the others");
        }
        assert!(reported.is_first(&line(1, 3)), "the job has started over");
    }
}
