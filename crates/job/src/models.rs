//! Models by name, made to fit the data.

use std::sync::Arc;

use paceline_learn::net::{charlm, cnn, mlp, resnet, resnet18, softmax};
use paceline_learn::{Dataset, Extent, Model, Net, Optimizer, Path, Quadratic, Rule};

use crate::recipes::unknown;

pub const MODELS: [&str; 11] = [
    "mlp",
    "softmax",
    "cnn",
    "resnet8",
    "resnet20",
    "resnet18",
    "resnet8-bn",
    "resnet20-bn",
    "resnet18-bn",
    "charlm",
    "quadratic",
];

/// Sides of images that residual networks halve twice or thrice.
const SIDE_MIN: usize = 4;

pub fn named(name: &str, data: &dyn Dataset, path: Path) -> Result<Arc<dyn Model>, String> {
    let (features, classes, extent) = (data.features(), data.classes(), data.extent());
    let inputs = || match name.ends_with("-bn") {
        true => Net::new(extent).with_batch_norm(),
        false => Net::new(extent),
    };
    let is_text = data.vocabulary().is_some();
    if is_text != (name == "charlm") && MODELS.contains(&name) {
        return Err(match is_text {
            true => format!("{name} cannot learn a text: take charlm"),
            false => "charlm learns texts: take --data text, or the path of a .txt file".into(),
        });
    }
    let net = match name {
        "quadratic" => return Ok(Arc::new(Quadratic { curvature: vec![1.0; 16], noise: 0.1 })),
        "mlp" if features < 256 => mlp(features, &[32], classes),
        "mlp" => mlp(features, &[256, 128], classes),
        "softmax" => softmax(features, classes),
        "charlm" => charlm(features - 1, classes),
        "cnn" => cnn(an_image(name, extent)?, classes),
        "resnet8" | "resnet8-bn" => resnet(an_image(name, extent).map(|_| inputs())?, 1, classes),
        "resnet20" | "resnet20-bn" => resnet(an_image(name, extent).map(|_| inputs())?, 3, classes),
        "resnet18" | "resnet18-bn" => resnet18(an_image(name, extent).map(|_| inputs())?, classes),
        name => {
            let list = format!("there are {}", MODELS.join(", "));
            return Err(unknown("model", name, MODELS.into_iter(), &list));
        }
    };
    Ok(Arc::new(net.on(path)))
}

/// The optimizer and learning rate of models that do not learn with the recipes' own SGD.
pub fn habits(name: &str) -> Option<(Optimizer, f32)> {
    let rule = Rule::Adamw { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.01 };
    (name == "charlm").then_some((Optimizer { rule, clip_norm: Some(1.0) }, 1e-3))
}

/// What the recipes' rates, which are for `mlp` on the 64 pixels of digits, are multiplied by. The loss
/// curves with the square of the inputs' length; below a sixteenth photographs learned too slowly. Norms
/// make a network indifferent to that, and half the rate is what residual ones are used to; with group
/// norm the deeper ones need less, or they never begin to learn.
pub fn rate_factor(name: &str, features: usize) -> f32 {
    match name {
        "softmax" | "mlp" | "cnn" => (64.0 / features as f32).clamp(1.0 / 16.0, 1.0),
        "resnet8" => 0.25,
        "resnet20" => 0.05,
        "resnet18" => 0.01,
        name if name.starts_with("resnet") => 0.5,
        _ => 1.0,
    }
}

fn an_image(model: &str, extent: Extent) -> Result<Extent, String> {
    let Extent { height, width, .. } = extent;
    if height.min(width) < SIDE_MIN {
        return Err(format!(
            "{model} learns images of at least {SIDE_MIN} x {SIDE_MIN} pixels, not rows of {} numbers: take mlp, or data such as digits or cifar10",
            extent.len()
        ));
    }
    Ok(extent)
}
