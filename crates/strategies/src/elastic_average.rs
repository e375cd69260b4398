//! Elastic averaging: a spring ties each replica to a common center, and the center to each replica.
//!
//! Zhang, Choromanska and LeCun 2015, asynchronous, with a central server, as Jin et al. 2016 (arXiv
//! 1611.04581) compare it: worker and center each move by elasticity / members towards the other's
//! old value. The gradient is computed before the exchange and applied after it.

use paceline_learn::Vector;
use paceline_learn::vector::add_scaled;
use paceline_runtime::{Call, Coordination, Interrupt, Message, Server, Share, Strategy, Worker};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ElasticAverage {
    pub batch: u64,
    /// Local steps between exchanges.
    pub period: u64,
    /// The paper's beta; the pull of one exchange is this over the number of members.
    pub elasticity: f32,
}

impl Strategy for ElasticAverage {
    async fn round(&mut self, worker: &mut Worker) -> Result<(), Interrupt> {
        let share = Share::Leased { samples: self.batch, ahead: true };
        for _ in 1..self.period {
            let Some(mine) = worker.gradient(share.clone()).await else { return Ok(()) };
            worker.descend_alone(&mine).await;
        }
        let Some(mine) = worker.gradient(share).await else { return Ok(()) };
        let sent = worker.params().await.clone();
        let answer = worker.call(Message::of(sent.clone())).await;
        worker.descend_alone(&mine).await;

        // x <- x + part (center - sent), also when the server is lost: then there is no pull.
        let (center, part) = (answer?, self.part(worker.members().len()));
        let pull = |params: &mut Vector| {
            add_scaled(params, part, &center);
            add_scaled(params, -part, &sent);
        };
        worker.change_params(pull).await;
        Ok(())
    }

    async fn serve(&mut self, server: &mut Server) -> Result<(), Interrupt> {
        loop {
            if let Call::Message { from, message } = server.next().await?
                && let [params] = &message.vectors[..]
            {
                server.draw_towards(from, params, self.part(server.view.members.len()));
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

impl ElasticAverage {
    fn part(&self, members: usize) -> f32 {
        self.elasticity / members as f32
    }
}
