//! Models by name, made to fit the data.

use std::sync::Arc;

use paceline_learn::net::{charlm, cnn, mlp, resnet, resnet18, softmax};
use paceline_learn::{Dataset, Extent, Model, Net, Optimizer, Path, Quadratic, Rule};

use crate::error::TaskError;
use crate::suggest::unknown;

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

/// The shortest side of an image that convolutional and residual networks can halve.
const SIDE_MIN: usize = 4;

/// The model of that name, with inputs and classes as `data` has them.
pub fn named(name: &str, data: &dyn Dataset, path: Path) -> Result<Arc<dyn Model>, TaskError> {
    let (features, classes, extent) = (data.features(), data.classes(), data.extent());
    let inputs = || match name.ends_with("-bn") {
        true => Net::new(extent).with_batch_norm(),
        false => Net::new(extent),
    };
    let is_text = data.vocabulary().is_some();
    if is_text != (name == "charlm") && MODELS.contains(&name) {
        return Err(match is_text {
            true => TaskError::NotForText { model: name.to_owned() },
            false => TaskError::OnlyForText,
        });
    }
    let net = match name {
        "quadratic" => return Ok(Arc::new(Quadratic { curvature: vec![1.0; 16], noise: 0.1 })),
        "mlp" if features < 256 => mlp(features, &[32], classes),
        "mlp" => mlp(features, &[256, 128], classes),
        "softmax" => softmax(features, classes),
        "charlm" => charlm(features - 1, classes),
        "cnn" => cnn(image_extent(name, extent)?, classes),
        "resnet8" | "resnet8-bn" => {
            resnet(image_extent(name, extent).map(|_| inputs())?, 1, classes)
        }
        "resnet20" | "resnet20-bn" => {
            resnet(image_extent(name, extent).map(|_| inputs())?, 3, classes)
        }
        "resnet18" | "resnet18-bn" => {
            resnet18(image_extent(name, extent).map(|_| inputs())?, classes)
        }
        name => return Err(unknown_name(name)),
    };
    Ok(Arc::new(net.on(path)))
}

/// Whether there is a model of that name, without the data that it is made for.
pub fn check_name(name: &str) -> Result<(), TaskError> {
    if MODELS.contains(&name) { Ok(()) } else { Err(unknown_name(name)) }
}

fn unknown_name(name: &str) -> TaskError {
    let list = format!("there are {}", MODELS.join(", "));
    unknown("model", name, MODELS.into_iter(), &list).into()
}

/// The default learning rate of AdamW, whose steps are as long as the rate, whatever the gradient: the recipes' rates,
/// which are for SGD, do not apply. 0.01 is good for `mlp` on digits; with the usual factor, larger models get about
/// 0.001.
pub fn adamw_rate(model: Option<&str>, features: usize) -> f32 {
    match model {
        None | Some("charlm") => 1e-3,
        Some(name) => 0.01 * rate_factor(name, features),
    }
}

/// The default optimizer and learning rate of models that do not train well with the recipes' SGD.
pub fn default_steps(name: &str) -> Option<(Optimizer, f32)> {
    let rule = Rule::Adamw { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.01 };
    (name == "charlm").then_some((Optimizer { rule, clip_norm: Some(1.0) }, 1e-3))
}

/// The factor for the recipes' learning rates, which are for `mlp` on the 64 pixels of digits.
///
/// The curvature of the loss grows with the square of the inputs' length, hence 64 / features; with a factor
/// below 1/16, training on photographs was too slow. Networks with norm layers do not depend on the inputs'
/// length: half the rate is usual for residual ones, and deep ones with group norm need much less, or
/// training does not start.
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

fn image_extent(model: &str, extent: Extent) -> Result<Extent, TaskError> {
    let Extent { height, width, .. } = extent;
    if height.min(width) < SIDE_MIN {
        let (model, features) = (model.to_owned(), extent.len());
        return Err(TaskError::OnlyForImages { model, side_min: SIDE_MIN, features });
    }
    Ok(extent)
}
