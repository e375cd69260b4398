//! The models whose gradients are timed, and one training step of each.

use paceline::learn::net::{cnn, mlp, resnet};
use paceline::learn::{Extent, Layout, Net, OptimizerState};
use paceline::{Batch, Dice, Gradient, Model, Optimizer, Scratch, Vector};

pub const BATCH: usize = 64;
pub const CLASSES: usize = 10;
pub const GRAY: Extent = Extent { height: 28, width: 28, channels: 1 };
pub const COLOR: Extent = Extent { height: 32, width: 32, channels: 3 };

/// A model, its name (the same in `peer.py`), and the speed relative to the peer that we aim at.
pub struct Named {
    pub name: &'static str,
    pub target: f64,
    pub make: fn() -> (Net, Batch),
}

pub const MODELS: &[Named] = &[
    Named { name: "mlp", target: 1.0, make: || of(mlp(784, &[256, 128], CLASSES), 784) },
    Named { name: "cnn", target: 1.5, make: || of(cnn(GRAY, CLASSES), GRAY.len()) },
    Named {
        name: "resnet20",
        target: 1.0,
        make: || of(resnet(Net::new(COLOR), 3, CLASSES), COLOR.len()),
    },
    Named {
        name: "resnet20-bn",
        target: 1.0,
        make: || of(resnet(Net::new(COLOR).with_batch_norm(), 3, CLASSES), COLOR.len()),
    },
    Named { name: "charlm", target: 0.8, make: || of(paceline::learn::net::charlm(64, 65), 65) },
];

fn of(net: Net, features: usize) -> (Net, Batch) {
    (net, noise(features, CLASSES))
}

/// Random samples: only the time counts.
pub fn noise(features: usize, classes: usize) -> Batch {
    let mut dice = Dice::keyed(&[1]);
    let inputs = (0..BATCH * features).map(|_| dice.normal() as f32).collect();
    let labels = (0..BATCH).map(|sample| (sample % classes) as u32).collect();
    Batch { features, inputs, labels, keys: (0..BATCH as u64).collect() }
}

/// A model in training, always on the same batch.
pub struct Training {
    pub net: Net,
    batch: Batch,
    params: Vector,
    layout: Layout,
    optimizer: Optimizer,
    state: OptimizerState,
    gradient: Gradient,
    scratch: Scratch,
}

impl Training {
    pub fn of(net: Net, batch: Batch) -> Training {
        assert!(batch.len() <= net.micro_batch_max(), "the batch fits into one micro-batch");
        let (params, layout, gradient) = (net.initial(1), net.layout(), Gradient::zero(net.size()));
        Training {
            net,
            batch,
            params,
            layout,
            optimizer: Optimizer::sgd(0.9),
            state: OptimizerState::default(),
            gradient,
            scratch: Scratch::default(),
        }
    }

    /// Forward and backward.
    pub fn differentiate(&mut self) {
        self.gradient.sum.fill(0.0);
        (self.gradient.loss_sum, self.gradient.samples, self.gradient.weight) = (0.0, 0, None);
        self.net.gradient(&self.params, &self.batch, &mut self.scratch, &mut self.gradient);
    }

    /// Forward, backward, SGD with momentum.
    pub fn step(&mut self) {
        self.differentiate();
        let Training { optimizer, params, state, gradient, layout, .. } = self;
        optimizer.descend(params, state, gradient, 1e-3, layout);
    }
}
