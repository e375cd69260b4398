//! Files of weights have the names, shapes and order of PyTorch, and anything else in them is rejected with a sentence.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use paceline::job::{models, weights};
use paceline::learn::layout::{self, Content};
use paceline::learn::net::cnn;
use paceline::learn::{Extent, Path as Kernels, Quadratic, Tensor, texts};
use paceline::{Batch, Dataset, Model, Scratch, Table};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};

const IMAGE: Extent = Extent { height: 8, width: 8, channels: 3 };
const CLASSES: usize = 10;
const TOKENS: &str = "abcdefg";
const CONTEXT: usize = 12;

fn model(name: &str) -> std::sync::Arc<dyn Model> {
    let table = Table { extent: IMAGE, classes: CLASSES, inputs: vec![], labels: vec![] };
    let text = || texts(TOKENS.repeat(50).as_bytes(), CONTEXT).expect("it is long enough").0;
    let data: Box<dyn Dataset> = if name == "charlm" { Box::new(text()) } else { Box::new(table) };
    models::named(name, data.as_ref(), Kernels::Portable).expect("the model exists")
}

/// The tensors of each model by name, written down from PyTorch's side.
fn expected(name: &str) -> BTreeMap<String, Vec<usize>> {
    let mut all = Names::default();
    match name {
        "softmax" => all.linear("fc", 192, 10),
        "mlp" => {
            all.linear("fc1", 192, 32);
            all.linear("fc", 32, 10);
        }
        "cnn" => {
            all.add("conv1.weight", &[16, 3, 3, 3]);
            all.add("conv1.bias", &[16]);
            all.add("conv2.weight", &[32, 16, 3, 3]);
            all.add("conv2.bias", &[32]);
            all.linear("fc1", 32 * 2 * 2, 128);
            all.linear("fc", 128, 10);
        }
        "resnet8" | "resnet8-bn" => all.resnet(&[16, 32, 64], 1, name.ends_with("-bn")),
        "resnet20" | "resnet20-bn" => all.resnet(&[16, 32, 64], 3, name.ends_with("-bn")),
        "resnet18" | "resnet18-bn" => all.resnet(&[64, 128, 256, 512], 2, name.ends_with("-bn")),
        "charlm" => {
            all.add("token_embedding.weight", &[7, 128]);
            all.add("position_embedding.weight", &[12, 128]);
            for layer in 0..4 {
                let layer = format!("encoder.layers.{layer}");
                all.add(&format!("{layer}.self_attn.in_proj_weight"), &[384, 128]);
                all.add(&format!("{layer}.self_attn.in_proj_bias"), &[384]);
                all.linear(&format!("{layer}.self_attn.out_proj"), 128, 128);
                all.linear(&format!("{layer}.linear1"), 128, 512);
                all.linear(&format!("{layer}.linear2"), 512, 128);
                all.norm(&format!("{layer}.norm1"), 128, false);
                all.norm(&format!("{layer}.norm2"), 128, false);
            }
            all.norm("encoder.norm", 128, false);
            all.linear("head", 128, 7);
        }
        "quadratic" => all.add("params", &[16]),
        name => panic!("{name} has no row in this table"),
    }
    all.0
}

#[derive(Default)]
struct Names(BTreeMap<String, Vec<usize>>);

impl Names {
    fn add(&mut self, name: &str, shape: &[usize]) {
        assert!(self.0.insert(name.to_owned(), shape.to_vec()).is_none(), "{name} is there twice");
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) {
        self.add(&format!("{name}.weight"), &[outputs, inputs]);
        self.add(&format!("{name}.bias"), &[outputs]);
    }

    fn norm(&mut self, name: &str, channels: usize, batch: bool) {
        self.add(&format!("{name}.weight"), &[channels]);
        self.add(&format!("{name}.bias"), &[channels]);
        if batch {
            self.add(&format!("{name}.running_mean"), &[channels]);
            self.add(&format!("{name}.running_var"), &[channels]);
            self.add(&format!("{name}.num_batches_tracked"), &[]);
        }
    }

    fn resnet(&mut self, widths: &[usize], blocks: usize, batch: bool) {
        let mut from = widths[0];
        self.add("conv1.weight", &[from, 3, 3, 3]);
        self.norm("bn1", from, batch);
        for (stage, to) in widths.iter().copied().enumerate() {
            for block in 0..blocks {
                let block = format!("layer{}.{block}", stage + 1);
                self.add(&format!("{block}.conv1.weight"), &[to, from, 3, 3]);
                self.norm(&format!("{block}.bn1"), to, batch);
                self.add(&format!("{block}.conv2.weight"), &[to, to, 3, 3]);
                self.norm(&format!("{block}.bn2"), to, batch);
                if from != to {
                    self.add(&format!("{block}.downsample.0.weight"), &[to, from, 1, 1]);
                    self.norm(&format!("{block}.downsample.1"), to, batch);
                }
                from = to;
            }
        }
        self.linear("fc", from, CLASSES);
    }
}

#[test]
fn every_model_has_the_names_and_shapes_of_pytorch() {
    for name in models::MODELS {
        let model = if name == "quadratic" { noise() } else { model(name) };
        let tensors = model.layout().tensors;

        assert_eq!(layout::check(&tensors, model.size()), Ok(()), "{name}");
        let found: BTreeMap<String, Vec<usize>> =
            tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
        assert_eq!(found, expected(name), "{name}");
    }
}

fn noise() -> std::sync::Arc<dyn Model> {
    std::sync::Arc::new(Quadratic { curvature: vec![1.0; 16], noise: 0.1 })
}

#[test]
fn buffers_follow_all_parameters() {
    let model = model("resnet20-bn");
    let layout = model.layout();
    for tensor in &layout.tensors {
        let Content::Values(values) = &tensor.content else { continue };
        let is_buffer = tensor.name.contains(".running_");
        assert_eq!(values.range.start >= layout.params, is_buffer, "{}", tensor.name);
    }
}

/// The names of a network of a user's own: numbered by kind, and by residual branch.
#[test]
fn layers_of_a_custom_network_are_numbered() {
    let net = paceline::learn::Net::new(IMAGE)
        .conv(8, 3)
        .norm()
        .relu()
        .residual(|b| b.conv_by(16, 3, 2).norm())
        .residual(|b| b.conv(16, 3).norm())
        .dense(5)
        .relu()
        .classes(3);

    let names: Vec<String> = net
        .layout()
        .tensors
        .into_iter()
        .map(|t| t.name)
        .filter(|n| n.ends_with("weight"))
        .collect();

    let expected = [
        "conv1.weight",
        "bn1.weight",
        "block1.downsample.0.weight",
        "block1.downsample.1.weight",
        "block1.conv1.weight",
        "block1.bn1.weight",
        "block2.conv1.weight",
        "block2.bn1.weight",
        "fc1.weight",
        "fc.weight",
    ];
    assert_eq!(names, expected);
}

#[test]
fn weights_are_read_back_bit_for_bit() {
    for name in ["softmax", "mlp", "cnn", "resnet8", "resnet20-bn", "charlm"] {
        let (model, path) = (model(name), folder().join(format!("{name}.safetensors")));
        let (tensors, size) = (model.layout().tensors, model.size());
        // Every value is another one, with all kinds of bits.
        let replica: Vec<f32> =
            (0..size as u32).map(|i| f32::from_bits(0x3f80_0000 ^ i.wrapping_mul(7919))).collect();
        weights::write(&path, &replica, &tensors, 77).expect("it can be written");

        let again = weights::read(&path, &tensors, size).expect("it can be read");

        assert!(replica.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
        assert_eq!(again.len(), size);
    }
    let path = folder().join("resnet20-bn.safetensors");
    let bytes = fs::read(path).expect("it was written");
    let file = SafeTensors::deserialize(&bytes).expect("it is complete");
    let tracked = file.tensor("bn1.num_batches_tracked").expect("it is there");
    assert_eq!((tracked.dtype(), tracked.data()), (Dtype::I64, &77_i64.to_le_bytes()[..]));
}

/// PyTorch's operations, written as plain loops with channels first, have the logits of our network.
#[test]
fn the_file_of_a_cnn_means_the_same_with_channels_first() {
    let image = Extent { height: 8, width: 8, channels: 2 };
    let net = cnn(image, 3).on(Kernels::Portable);
    let replica = net.initial(3);
    let path = folder().join("loops.safetensors");
    weights::write(&path, &replica, &net.layout().tensors, 0).expect("it can be written");
    let bytes = fs::read(&path).expect("it was written");
    let file = SafeTensors::deserialize(&bytes).expect("it is complete");
    let tensor = |name: &str| -> Vec<f32> {
        let data = file.tensor(name).expect("it is there").data().to_vec();
        data.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
    };
    let inputs: Vec<f32> = (0..image.len()).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
    let mut batch = Batch::new();
    (batch.features, batch.labels, batch.keys) = (image.len(), vec![0], vec![0]);
    batch.inputs = inputs.clone();

    let logits = net.outputs(&replica, &batch, &mut Scratch::default());
    let mut planes = vec![0.0; image.len()];
    for (at, value) in inputs.iter().enumerate() {
        planes[at % 2 * 64 + at / 2] = *value;
    }
    let one = pooled(&convolved(&planes, &tensor("conv1.weight"), &tensor("conv1.bias"), 8), 8);
    let two = pooled(&convolved(&one, &tensor("conv2.weight"), &tensor("conv2.bias"), 4), 4);
    let hidden: Vec<f32> = linear(&two, &tensor("fc1.weight"), &tensor("fc1.bias"))
        .into_iter()
        .map(|x| x.max(0.0))
        .collect();
    let expected = linear(&hidden, &tensor("fc.weight"), &tensor("fc.bias"));

    let scale = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    for (logit, expected) in logits.iter().zip(&expected) {
        assert!((logit - expected).abs() < 1e-5 * scale, "{logits:?} and {expected:?}");
    }
    assert_eq!(logits.len(), 3);
}

/// A 3 x 3 convolution with a padding of 1 over square planes, with relu.
fn convolved(planes: &[f32], weight: &[f32], bias: &[f32], side: usize) -> Vec<f32> {
    let inputs = planes.len() / (side * side);
    let mut out = Vec::new();
    for (channel, bias) in bias.iter().enumerate() {
        for at in 0..side * side {
            let mut sum = *bias;
            for tap in 0..inputs * 9 {
                let (input, row, column) = (tap / 9, at / side + tap % 9 / 3, at % side + tap % 3);
                if (1..=side).contains(&row) && (1..=side).contains(&column) {
                    let pixel = planes[input * side * side + (row - 1) * side + column - 1];
                    sum += pixel * weight[channel * inputs * 9 + tap];
                }
            }
            out.push(sum.max(0.0));
        }
    }
    out
}

fn pooled(planes: &[f32], side: usize) -> Vec<f32> {
    let half = side / 2;
    let at = |plane: &[f32], row: usize, column: usize| plane[row * side + column];
    let pool = |plane: &[f32], i: usize| {
        let (row, column) = (i / half * 2, i % half * 2);
        at(plane, row, column)
            .max(at(plane, row, column + 1))
            .max(at(plane, row + 1, column))
            .max(at(plane, row + 1, column + 1))
    };
    let planes = planes.chunks_exact(side * side);
    planes.flat_map(|plane| (0..half * half).map(move |i| pool(plane, i))).collect()
}

fn linear(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let rows = weight.chunks_exact(x.len()).zip(bias);
    rows.map(|(row, bias)| bias + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>()).collect()
}

#[test]
fn a_file_that_does_not_fit_the_model_is_rejected_with_one_sentence() {
    let model = model("softmax");
    let (tensors, size) = (model.layout().tensors, model.size());
    let (weight, bias) = (vec![0; 4 * 1920], vec![0; 40]);
    let file = |entries: &[(&str, Dtype, &[usize], &[u8])]| {
        let views = entries.iter().map(|(name, dtype, shape, data)| {
            (*name, TensorView::new(*dtype, shape.to_vec(), data).expect("the length is right"))
        });
        serialize(views, None).expect("it can be written")
    };
    let right = ("fc.weight", Dtype::F32, &[10, 192][..], &weight[..]);
    let last = ("fc.bias", Dtype::F32, &[10][..], &bias[..]);
    let whole = file(&[right, last]);
    assert!(weights::parse(&whole, &tensors, size).is_ok());
    let mut long_header = whole.clone();
    long_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut huge_shape = whole.clone();
    let at = whole.windows(3).position(|x| x == b"192").expect("it is in the header");
    huge_shape[at..at + 3].copy_from_slice(b"999");
    let cases = [
        (
            "another name",
            file(&[("linear.weight", Dtype::F32, &[10, 192], &weight), last]),
            "there is no tensor fc.weight; is it a file of another model?",
        ),
        (
            "another shape",
            file(&[("fc.weight", Dtype::F32, &[192, 10], &weight), last]),
            "tensor fc.weight has the shape [192, 10] instead of [10, 192]",
        ),
        (
            "another length",
            file(&[right, ("fc.bias", Dtype::F32, &[9], &bias[..36])]),
            "tensor fc.bias has the shape [9] instead of [10]",
        ),
        (
            "a missing tensor",
            file(&[right]),
            "there is no tensor fc.bias; is it a file of another model?",
        ),
        (
            "one too many",
            file(&[right, last, ("more\n", Dtype::F32, &[1], &bias[..4])]),
            "the model has no tensor \"more\\n\"; is it a file of another model?",
        ),
        (
            "another type",
            file(&[right, ("fc.bias", Dtype::F64, &[10], &[0; 80])]),
            "tensor fc.bias has the type F64 instead of F32",
        ),
        (
            "cut short",
            whole[..whole.len() - 1].to_vec(),
            "not a safetensors file, or damaged (incomplete metadata, file not fully covered)",
        ),
        (
            "cut in the header",
            whole[..20].to_vec(),
            "not a safetensors file, or damaged (invalid header length)",
        ),
        ("empty", vec![], "not a safetensors file, or damaged (header too small)"),
        ("a long header", long_header, "not a safetensors file, or damaged (header too large)"),
        (
            "a shape beyond the file",
            huge_shape,
            "not a safetensors file, or damaged (invalid shape, data type, or offset for tensor)",
        ),
    ];
    for (what, bytes, sentence) in cases {
        let error = weights::parse(&bytes, &tensors, size).expect_err(what);
        assert_eq!(error.to_string(), sentence, "{what}");
    }
}

#[test]
fn no_truncation_and_no_flipped_bit_of_the_header_panics() {
    let model = model("softmax");
    let (tensors, size) = (model.layout().tensors, model.size());
    let path = folder().join("flipped.safetensors");
    weights::write(&path, &vec![1.0; size], &tensors, 0).expect("it can be written");
    let whole = fs::read(&path).expect("it was written");
    for at in 0..400.min(whole.len()) {
        assert!(weights::parse(&whole[..at], &tensors, size).is_err(), "{at}");
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            let _ = weights::parse(&flipped, &tensors, size);
        }
    }
}

/// A description of tensors that claims more than the file holds must not make the program take memory for it.
#[test]
fn a_claimed_size_is_compared_with_the_file_before_memory_is_taken() {
    let huge = 1 << 60;
    let tensors = [Tensor::plain("params", &[huge], 0)];
    let view = TensorView::new(Dtype::F32, vec![1], &[0; 4]).expect("the length is right");
    let bytes = serialize([("params", view)], None).expect("it can be written");

    let error = weights::parse(&bytes, &tensors, huge).expect_err("it is too short");

    assert_eq!(error.to_string(), format!("tensor params has the shape [1] instead of [{huge}]"));
}

fn folder() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("weights");
    fs::create_dir_all(&path).expect("a test folder can be created");
    path
}
