//! A worker's question, as Python sees it. Vectors stay behind in the line.

use paceline_runtime::Spans;
use paceline_runtime::edge::{self, Along, Moment};
use pyo3::prelude::*;

/// What a worker asks of its host. `kind`: compute, apply, export, load or keep.
#[pyclass(frozen, get_all, module = "paceline._paceline")]
pub struct Ask {
    kind: &'static str,
    /// Positions to compute, and those that probably follow, as half-open intervals.
    spans: Vec<(u64, u64)>,
    ahead: Vec<(u64, u64)>,
    round: u64,
    /// Samples of the job before a gradient, or after a step.
    samples: u64,
    members: Vec<u32>,
    view: u64,
    /// The samples that are in the replicas of all synchronous members, as half-open intervals.
    done: Vec<(u64, u64)>,
    /// Whether a step is along this worker's own gradient, which no other one has.
    is_alone: bool,
    /// What the sum to be applied is divided by, and how many samples it has.
    weight: f64,
    summed: u64,
    /// What the user's learning rate is multiplied by.
    factor: f32,
    /// The optimizer's state to be loaded; empty: that of one that has made no step.
    state: Option<Vec<u8>>,
}

impl Ask {
    pub fn of(ask: &edge::Ask) -> Ask {
        let mut seen = Ask {
            kind: "keep",
            spans: vec![],
            ahead: vec![],
            round: 0,
            samples: 0,
            members: vec![],
            view: 0,
            done: vec![],
            is_alone: false,
            weight: 0.0,
            summed: 0,
            factor: 1.0,
            state: None,
        };
        match ask {
            edge::Ask::Compute { spans, ahead, moment } => {
                seen.kind = "compute";
                (seen.spans, seen.ahead) = (intervals(spans), intervals(ahead));
                seen.at(moment);
            }
            edge::Ask::Apply { along, factor, moment, .. } => {
                seen.kind = "apply";
                let gradient = along.gradient();
                (seen.weight, seen.summed) = (gradient.weight(), gradient.samples);
                seen.factor = *factor;
                seen.is_alone = matches!(along, Along::Mine(_));
                seen.at(moment);
            }
            edge::Ask::Export => seen.kind = "export",
            edge::Ask::Load { optimizer, .. } => {
                seen.kind = "load";
                seen.state = optimizer.as_ref().map(|bytes| bytes.to_vec());
            }
            edge::Ask::Keep => {}
        }
        seen
    }

    fn at(&mut self, moment: &Moment) {
        (self.round, self.samples, self.view) = (moment.round, moment.samples, moment.view.number);
        self.members = moment.view.members.iter().map(|who| who.0).collect();
        self.done = intervals(&moment.done);
    }
}

pub fn intervals(spans: &Spans) -> Vec<(u64, u64)> {
    spans.intervals().to_vec()
}
