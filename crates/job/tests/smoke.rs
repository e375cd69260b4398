use paceline_job::*;
use paceline_sim::Scenario;
#[test]
fn smoke() {
    let scenario: Scenario = toml::from_str("workers = 8\n[compute]\nrelative=[1,1,1,1,1,1,2,4]\njitter=0.2").unwrap();
    for r in recipes() {
        let job = Job { strategy: r.name.clone(), ..Job::default() };
        let p = job.check(&recipes(), 8, None).unwrap();
        let t = std::time::Instant::now();
        match simulate(&p, &scenario, 2, vec![]) {
            Ok(s) => println!("{:12} virt {:.3} real {:.2?} acc {:.3} loss {:.4} rounds {} util {:.2} {:?} wasted {} bytes {} wires {} stale {} {} {:?}", r.name, s.outcome.seconds(), t.elapsed(), s.outcome.accuracy, s.outcome.loss, s.outcome.rounds, s.outcome.utilization_mean(), s.outcome.ledger, s.outcome.samples_wasted, s.outcome.bytes_sent, s.bytes_on_wires, s.outcome.staleness_max, s.outcome.journal_hash, s.outcome.diverged),
            Err(e) => println!("{:12} {e}", r.name),
        }
    }
}
