//! The ledger's checker can fail: it counts the errors of a ledger that is broken on purpose.

use std::sync::Arc;
use std::time::Duration;

use paceline::runtime::coordination::{Lease, Order};
use paceline::runtime::edge::{Action, Cluster, ClusterOutput, Event, News};
use paceline::runtime::{Executor, SampleTally, Spans, Tally, WorkerId, train};
use paceline::sim::{SimCluster, SimConfig};
use paceline::{Job, Line, Record, Scenario};

/// A cluster that leases one range a second time instead of the next one.
struct DealsTwice {
    cluster: SimCluster,
    leases: u32,
    last: Spans,
}

impl Cluster for DealsTwice {
    fn now(&self) -> Duration {
        self.cluster.now()
    }

    fn submit(&mut self, by: WorkerId, action: Action) {
        self.cluster.submit(by, action);
    }

    fn next(&mut self) -> Option<Event> {
        let mut event = self.cluster.next()?;
        if let Event::For { news: News::Told(order), .. } = &mut event
            && let Order::Lease { lease: Lease::Yours { spans, .. }, .. } = order
        {
            self.leases += 1;
            if self.leases == 7 {
                *spans = self.last.clone();
            }
            self.last = spans.clone();
        }
        Some(event)
    }

    fn is_over(&self) -> bool {
        self.cluster.is_over()
    }

    fn emit(&mut self, output: ClusterOutput) {
        self.cluster.emit(output);
    }
}

/// The tally of a gossip run on digits, with a correct or a broken ledger.
fn tally(broken: bool) -> Tally {
    let job =
        Job { strategy: "gossip-pull".into(), epochs: 0.5, validation: 0.0, ..Job::default() };
    let prepared = job.prepare(4).expect("the job is valid");
    let plan = Arc::new(prepared.plan.clone());
    let options = SimConfig {
        seed: plan.seed,
        compute: prepared.task.compute(plan.seed),
        threads: 1,
        samples_total: plan.samples_total,
        samples_per_epoch: plan.samples_per_epoch,
        coordination: paceline::Coordination::Asynchronous,
        done: Spans::new(),
    };
    let cluster = SimCluster::new(Scenario::default(), options);
    let leases = if broken { 0 } else { 1_000_000 };
    let outputs = cluster.outputs();
    let cluster = DealsTwice { cluster, leases, last: Spans::new() };
    let mut check = SampleTally::default();
    let record = Record::Began {
        version: 1,
        strategy: prepared.name.clone(),
        seed: plan.seed,
        samples_total: plan.samples_total,
        samples_per_epoch: plan.samples_per_epoch,
        model: String::new(),
        data: String::new(),
        params: plan.initial.len() as u64,
        kernels: String::new(),
        together: false,
        central: false,
    };
    check.read(&Line { at: Duration::ZERO, record });
    let start = |port| -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(train(plan.clone(), port, prepared.strategy()))
    };
    let ended = Executor::new(Box::new(cluster)).run(&mut { start });
    for output in outputs.borrow_mut().drain(..) {
        if let ClusterOutput::Line(line) = output {
            check.read(&line);
        }
    }
    // With a range that is never applied, all workers wait forever, and the run ends with an error.
    assert_eq!(ended.is_err(), broken);
    check.verdict(false)
}

#[test]
fn a_range_that_is_leased_twice_counts_as_lost_and_repeated() {
    assert_eq!(tally(false), Tally { done: 719, lost: 0, repeated: 0 });
    assert_eq!(tally(true), Tally { done: 703, lost: 16, repeated: 16 });
}

#[test]
fn a_range_applied_after_its_worker_was_removed_is_wasted_not_repeated() {
    let mut check = SampleTally::default();
    let who = WorkerId(0);
    let applied = |who, from, to| Record::Applied {
        who,
        version: 0,
        spans: Spans::one(from, to),
        loss_sum: 0.0,
        weight: None,
        staleness: 0,
        rate: 0.1,
        round: None,
        result: None,
    };
    let lines = [
        Record::Computed { who, since: Duration::ZERO, samples: 20, round: None, spans: None },
        applied(who, 0, 4),
        applied(who, 4, 8),
        Record::Freed { who, spans: Spans::one(4, 8) },
        applied(who, 8, 12),
        applied(WorkerId(1), 4, 12),
    ];
    for record in lines {
        check.read(&Line { at: Duration::ZERO, record });
    }
    let tally = check.verdict(true);
    assert_eq!((tally.done, tally.repeated, check.wasted()), (12, 0, 8));
}
