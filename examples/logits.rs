//! Writes the logits of a trained model, with the samples that they belong to, for comparison with another program.
//!
//! `cargo run --example logits -- CHECKPOINT OUTPUT.safetensors [WEIGHTS.safetensors]`; with weights, these take the place of the
//! checkpoint's. tests/torch/weights.py compares the logits with PyTorch's.

use std::error::Error;
use std::path::Path;

use paceline::job::checkpoint::load_weights;
use paceline::job::weights;
use paceline::{Batch, Scratch};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

const SAMPLES: u64 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [checkpoint, output, others @ ..] = &arguments[..] else {
        return Err("give a checkpoint and the file to write".into());
    };
    let saved = load_weights(checkpoint)?;
    let test = saved.test_set(None, None)?;
    let model = saved.model(test.as_ref())?;
    let params = match others.first() {
        Some(path) => weights::read(Path::new(path), &model.layout().tensors, model.size())?,
        None => saved.params.clone(),
    };
    let mut batch = Batch::new();
    batch.fill(test.as_ref(), (0..SAMPLES.min(test.len())).map(|index| (0, index)));

    let logits = model.outputs(&params, &batch, &mut Scratch::default());

    let (samples, classes, extent) = (batch.len(), test.classes(), test.extent());
    let rows = logits.len() / samples / classes;
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (inputs, logits) = (bytes(&batch.inputs), bytes(&logits));
    // Inputs have channels last, as in memory.
    let inputs_shape = vec![samples, extent.height, extent.width, extent.channels];
    let tensors = [
        ("inputs", TensorView::new(Dtype::F32, inputs_shape, &inputs)?),
        ("logits", TensorView::new(Dtype::F32, vec![samples, rows, classes], &logits)?),
    ];
    println!("{} {}", saved.manifest.job.model, saved.path.display());
    Ok(serialize_to_file(tensors, None, Path::new(output))?)
}
