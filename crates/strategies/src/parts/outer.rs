//! The outer step: computes the next common replica from the last average and the new one.

use std::sync::Arc;

use paceline_learn::Vector;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outer {
    /// The average itself.
    #[default]
    None,
    /// Wang et al. 2020, algorithm 1: heavy-ball momentum over the move per unit of learning rate.
    #[serde(rename = "slowmo")]
    SlowMo { rate: f32, momentum: f32 },
    /// Douillard et al. 2023, algorithm 1: Nesterov momentum over the move itself.
    Diloco { rate: f32, momentum: f32 },
}

/// An outer step with its momentum, which is equal on all members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OuterStep {
    pub outer: Outer,
    /// Empty means zeros.
    #[serde(skip)]
    pub momentum: Arc<Vector>,
}

impl OuterStep {
    pub fn new(outer: Outer) -> OuterStep {
        OuterStep { outer, momentum: Arc::default() }
    }

    /// The next common replica. `anchor` is the replica at the last average. If `mean` is longer, as with buffers
    /// behind the params, the rest of it is returned unchanged.
    pub fn step(&mut self, anchor: &[f32], mut mean: Vector, inner_rate: f32) -> Vector {
        assert!(anchor.len() <= mean.len(), "the anchor is at most as long as the mean");
        if self.outer == Outer::None {
            return mean;
        }
        let buffer = Arc::make_mut(&mut self.momentum);
        if buffer.is_empty() {
            buffer.resize(anchor.len(), 0.0);
        }
        assert_eq!(buffer.len(), anchor.len(), "the length of the anchor does not change");
        let all = anchor.iter().zip(&mut mean).zip(buffer);
        match self.outer {
            Outer::None => {}
            // At a learning rate of 0 no replica has moved, and the division below would be by zero.
            Outer::SlowMo { .. } if inner_rate == 0.0 => {}
            Outer::SlowMo { rate, momentum } => all.for_each(|((anchor, x), u)| {
                *u = momentum * *u + (anchor - *x) / inner_rate;
                *x = anchor - rate * inner_rate * *u;
            }),
            Outer::Diloco { rate, momentum } => all.for_each(|((anchor, x), u)| {
                let delta = anchor - *x;
                *u = momentum * *u + delta;
                *x = anchor - rate * (delta + momentum * *u);
            }),
        }
        mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(x: &[f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        x.iter().zip(y).for_each(|(x, y)| assert!((x - y).abs() < 1e-6, "{x} {y}"));
    }

    #[test]
    fn none_keeps_every_bit_of_the_mean() {
        let mut step = OuterStep::new(Outer::None);
        let mean = Vector::from([0.1, -0.0, 1e-40, f32::INFINITY]);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();

        let next = step.step(&[1.0, 2.0, 3.0, 4.0], mean.clone(), 0.1);

        assert_eq!(bits(&next), bits(&mean));
        assert_eq!(step, OuterStep::default());
    }

    /// Wang et al. 2020: with rate 1 and momentum 0, SlowMo is local SGD.
    #[test]
    fn slowmo_without_momentum_is_the_mean() {
        let mut step = OuterStep::new(Outer::SlowMo { rate: 1.0, momentum: 0.0 });
        let mut anchor = Vector::from([1.0, -2.0, 0.5]);

        for round in 1..5 {
            let mean: Vector = anchor.iter().map(|x| x * 0.9 - 0.01 * round as f32).collect();
            let next = step.step(&anchor, mean.clone(), 0.3);
            near(&next, &mean);
            anchor = next;
        }
    }

    /// Wang et al. 2020, algorithm 1: u <- b u + (anchor - mean) / eta, x <- anchor - a eta u. By
    /// hand, with a = 0.5, b = 0.5, and the learning rate halved between the rounds.
    #[test]
    fn slowmo_follows_its_formula() {
        let mut step = OuterStep::new(Outer::SlowMo { rate: 0.5, momentum: 0.5 });

        near(&step.step(&[1.0], [0.8].into(), 0.1), &[0.9]); // u = 2, x = 1 - 0.5 * 0.1 * 2
        near(&step.momentum, &[2.0]);
        near(&step.step(&[0.9], [0.8].into(), 0.05), &[0.825]); // u = 1 + 2 = 3, x = 0.9 - 0.025 * 3
        near(&step.momentum, &[3.0]);
    }

    #[test]
    fn slowmo_at_learning_rate_zero_stays_finite() {
        let mut step = OuterStep::new(Outer::SlowMo { rate: 1.0, momentum: 0.5 });
        assert_eq!(step.step(&[1.0], [1.0].into(), 0.0), [1.0]);
        assert_eq!(*step.momentum, [0.0]);
    }

    /// Douillard et al. 2023, algorithm 1, with Nesterov momentum as torch writes it:
    /// u <- m u + delta, x <- anchor - rate (delta + m u). By hand.
    #[test]
    fn diloco_follows_its_formula() {
        let mut step = OuterStep::new(Outer::Diloco { rate: 0.7, momentum: 0.9 });

        near(&step.step(&[1.0, 0.0], [0.5, 0.0].into(), 0.1), &[0.335, 0.0]); // 1 - 0.7 (0.5 + 0.45)
        near(&step.step(&[0.335, 0.0], [0.135, 0.1].into(), 0.1), &[-0.2145, 0.133]);
        near(&step.momentum, &[0.65, -0.1]); // 0.9 * 0.5 + 0.2
    }

    /// Extrapolating running variances could make them negative.
    #[test]
    fn buffers_behind_the_anchor_are_unchanged() {
        let mut step = OuterStep::new(Outer::Diloco { rate: 0.7, momentum: 0.9 });
        let next = step.step(&[1.0], [0.5, 42.0].into(), 0.1);
        near(&next, &[0.335, 42.0]);
        assert_eq!(step.momentum.len(), 1);
    }

    #[test]
    fn an_outer_step_is_read_from_a_job() {
        let outer: Outer =
            serde_json::from_str(r#"{"kind": "diloco", "rate": 0.7, "momentum": 0.9}"#).unwrap();
        assert_eq!(outer, Outer::Diloco { rate: 0.7, momentum: 0.9 });
        let slowmo = r#"{"kind": "slowmo", "rate": 1.0, "momentum": 0.5}"#;
        assert!(matches!(serde_json::from_str(slowmo), Ok(Outer::SlowMo { .. })));
    }
}
