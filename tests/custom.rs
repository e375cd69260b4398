//! User-defined strategies: what they may send, and what they may draw.

use std::sync::Arc;

use paceline::sim::checkers::ReplicasAgree;
use paceline::{
    Call, Coordination, Interrupt, Job, Line, Message, PrepareOptions, Prepared, Reader, Recipe,
    Record, Scenario, Server, Share, SimulateOptions, Strategy, TrainOptions, Worker, simulate,
    train,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

fn prepare(recipe: Recipe, workers: u32) -> Prepared {
    let (model, data) = ("softmax".into(), "blobs".into());
    let job = Job { strategy: recipe.name.clone(), model, data, epochs: 2.0, ..Job::default() };
    let options = PrepareOptions { recipes: &[recipe], ..PrepareOptions::new(workers) };
    job.prepare_with(options).expect("the job is valid")
}

/// Synchronous; each worker draws another number of samples from its lane, which no other worker knows.
#[derive(Clone, Serialize, Deserialize)]
struct UnevenDraws {
    batch: u64,
}

impl Strategy for UnevenDraws {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let mine = worker.gradient(Share::Lane(1 + worker.rank() as u64 * self.batch)).await;
        let total = worker.sum(mine).await?;
        worker.descend(&total).await;
        Ok(())
    }

    fn coordination(&self) -> Coordination {
        Coordination::Synchronous
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        (self.batch * members as u64) as f64
    }

    fn lane_batch(&self) -> Option<u64> {
        Some(self.batch)
    }
}

#[test]
fn workers_may_draw_different_numbers_from_their_lanes_and_still_agree() {
    let recipe =
        Recipe::own("uneven", "lanes of unequal draws", 0.05, |batch, _| UnevenDraws { batch });
    let mut prepared = prepare(recipe, 3);
    prepared.plan.fingerprints = true;
    let mut agree = ReplicasAgree::default();
    let options = SimulateOptions { readers: vec![&mut agree], ..SimulateOptions::default() };

    let scenario = Scenario { workers: 3, ..Scenario::default() };
    let result = simulate(&prepared, &scenario, options).expect("the run ends").result;

    assert_eq!(agree.violations, Vec::<String>::new());
    let ledger = result.ledger;
    let expected = (prepared.plan.samples_total, 0, 0);
    assert_eq!((ledger.done, ledger.lost, ledger.repeated), expected);
}

/// Asynchronous, around a center: workers send data and vectors of their own choice to a peer and to the server.
#[derive(Clone, Serialize, Deserialize)]
struct Chatty {
    batch: u64,
}

impl Strategy for Chatty {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let share = Share::Leased { samples: self.batch, ahead: false };
        let Some(mine) = worker.gradient(share).await else { return Ok(()) };
        worker.descend_alone(&mine).await;
        let peer = worker.random_member();
        let vectors = vec![worker.params().await.clone(), Arc::new([1.0, 2.0].into())];
        worker.send(peer, Message { data: json!({ "round": worker.round() }), vectors });
        for (_, message) in worker.received() {
            let round = message.data["round"].as_u64().expect("peers send their round");
            assert_eq!(*message.vectors[1], [1.0, 2.0]);
            worker.note("peer's round", round as f64);
        }
        let asked = Message { data: json!("how many?"), vectors: vec![] };
        worker.call(asked).await?;
        Ok(())
    }

    async fn serve(&mut self, server: &mut Server) -> Result<(), Interrupt> {
        loop {
            if let Call::Message { from, message } = server.next().await? {
                assert_eq!(message.data, "how many?");
                server.reply(from);
            }
        }
    }

    fn coordination(&self) -> Coordination {
        Coordination::Centered { applies_samples: false }
    }

    fn nominal_batch(&self, members: usize) -> f64 {
        (self.batch * members as u64) as f64
    }
}

/// Counts notes, and checks that readers see the worker and the round of a line.
#[derive(Default)]
struct Notes(u64);

impl Reader for Notes {
    fn read(&mut self, line: &Line) {
        if let Record::Note { .. } = line.record {
            assert!(line.record.worker().is_some() && line.record.round().is_some());
            self.0 += 1;
        }
    }
}

#[test]
fn a_strategy_sends_what_it_likes_simulated_and_on_threads() {
    let recipe = || Recipe::own("chatty", "messages of its own", 0.05, |batch, _| Chatty { batch });
    let prepared = prepare(recipe(), 3);
    let [mut simulated, mut real] = [Notes::default(), Notes::default()];

    let options = SimulateOptions { readers: vec![&mut simulated], ..SimulateOptions::default() };
    let scenario = Scenario { workers: 3, ..Scenario::default() };
    let ended = simulate(&prepared, &scenario, options).expect("the run ends");
    let options = TrainOptions { readers: vec![&mut real], ..TrainOptions::default() };
    let trained = train(&prepared, options).expect("training ends");

    assert!(simulated.0 > 0 && real.0 > 0, "messages arrive");
    assert!(ended.center.is_some() && ended.replicas.len() == 3);
    for ledger in [ended.result.ledger, trained.result.ledger] {
        assert_eq!((ledger.lost, ledger.repeated), (0, 0));
    }
}
