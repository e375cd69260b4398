//! Models by name, made to fit the data.

use std::sync::Arc;

use paceline_learn::{Dataset, Mlp, Model, Quadratic, Softmax};

use crate::recipes::unknown;

pub const MODELS: [&str; 3] = ["mlp", "softmax", "quadratic"];

pub fn named(name: &str, data: &dyn Dataset) -> Result<Arc<dyn Model>, String> {
    let (features, classes) = (data.features(), data.classes());
    match name {
        "mlp" => Ok(Arc::new(Mlp { features, hidden: vec![32], classes })),
        "softmax" => Ok(Arc::new(Softmax { features, classes })),
        "quadratic" => Ok(Arc::new(Quadratic { curvature: vec![1.0; 16], noise: 0.1 })),
        name => {
            let list = format!("there are {}", MODELS.join(", "));
            Err(unknown("model", name, MODELS.into_iter(), &list))
        }
    }
}
