//! The gradient of every layer is the slope of the loss, on every path that this processor supports.

use paceline_learn::net::{self, Builder};
use paceline_learn::{
    Batch, Dice, Extent, Gradient, Model, Net, Optimizer, OptimizerState, Path, Rule, Scratch,
};

fn image(height: usize, width: usize, channels: usize) -> Extent {
    Extent { height, width, channels }
}

/// Networks with all kinds of layers, at sizes around those of the kernels' blocks.
fn networks() -> Vec<(&'static str, Net)> {
    let small = || Net::new(image(6, 5, 3));
    let wide = || Net::new(image(4, 4, 2));
    let row = || Net::new(image(1, 5, 2));
    let pixel = || Net::new(image(1, 1, 3));
    vec![
        ("softmax", net::softmax(7, 3)),
        ("mlp", net::mlp(6, &[9, 33], 3)),
        ("conv 3x3", small().conv(5, 3).relu().classes(3)),
        ("conv 3x3 twice", small().conv(5, 3).relu().conv(17, 3).relu().classes(3)),
        ("conv 1x1", small().conv(6, 1).relu().conv(4, 1).classes(3)),
        ("conv 5x5", small().conv(4, 1).conv(7, 5).relu().classes(3)),
        ("stride 2", small().conv(4, 3).conv_by(6, 3, 2).relu().classes(3)),
        ("stride 2, 1x1", small().conv(4, 3).conv_by(6, 1, 2).classes(3)),
        ("stride 3, 5x5", small().conv(4, 3).conv_by(6, 5, 3).classes(3)),
        ("no padding", small().conv(4, 3).conv_padded(6, 3, 1, 0).classes(3)),
        ("much padding", small().conv(4, 3).conv_padded(6, 3, 1, 2).classes(3)),
        ("stride 2, no padding", small().conv(4, 3).conv_padded(6, 3, 2, 0).classes(3)),
        ("one row", row().conv(4, 3).relu().conv(6, 3).relu().classes(3)),
        ("one pixel", pixel().conv(4, 3).relu().conv(6, 3).conv(5, 3).classes(3)),
        ("down to one pixel", wide().conv_by(4, 3, 2).conv_by(6, 3, 2).conv(7, 3).classes(3)),
        ("max pool", small().conv(8, 3).relu().max_pool(2).classes(3)),
        ("mean pool", small().conv(8, 3).relu().mean_pool(2).classes(3)),
        ("global pool", small().conv(8, 3).relu().global_pool().classes(3)),
        ("group norm", small().conv(16, 3).norm().relu().conv(5, 3).classes(3)),
        ("batch norm", small().with_batch_norm().conv(6, 3).norm().relu().conv(5, 3).classes(3)),
        ("dropout", small().conv(8, 3).relu().dropout(0.3).conv(5, 3).dropout(0.5).classes(3)),
        ("residual", wide().conv(8, 3).residual(|b| b.conv(8, 3).norm()).relu().classes(3)),
        ("residual, plain", wide().conv(4, 3).residual(|b| b.conv(4, 3).relu()).classes(3)),
        ("residual, pool first", wide().conv(8, 3).relu().residual(|b| b.max_pool(2)).classes(3)),
        ("residual, strided", residual(wide()).classes(3)),
        ("residual, batch norm", residual(wide().with_batch_norm()).classes(3)),
        ("text: embed", text(5).embed(TOKENS, 20).next_token(TOKENS)),
        ("text: layer norm", text(5).embed(TOKENS, 20).layer_norm().next_token(TOKENS)),
        ("text: gelu", text(5).embed(TOKENS, 6).conv(20, 1).gelu().next_token(TOKENS)),
        ("text: attention", attention(5, 6, 2).next_token(TOKENS)),
        ("text: attention, one position", attention(1, 6, 2).next_token(TOKENS)),
        ("text: attention, many positions", attention(37, 18, 1).next_token(TOKENS)),
        ("text: attention, wide heads", attention(33, 40, 1).next_token(TOKENS)),
        ("text: in frames", in_frames(text(5)).next_token(TOKENS)),
        ("text: added to", added_to(text(5)).next_token(TOKENS)),
        ("text: transformer", text(7).embed(TOKENS, 8).transformer(2, 2, 0.0).next_token(TOKENS)),
        ("text: dropout", text(7).embed(TOKENS, 8).transformer(1, 2, 0.2).next_token(TOKENS)),
    ]
}

const TOKENS: usize = 5;

fn text(context: usize) -> Builder {
    Net::new(Extent::row(context + 1))
}

fn attention(context: usize, channels: usize, heads: usize) -> Builder {
    text(context).embed(TOKENS, 4).conv(3 * channels, 1).attention(heads)
}

/// Convolutions of size 3 require padding around the inputs and outputs of the layers for text.
fn in_frames(text: Builder) -> Builder {
    let inputs = text.embed(TOKENS, 4).conv(12, 3).attention(2).conv(6, 3);
    inputs.layer_norm().conv(6, 3).gelu().conv(4, 3)
}

/// Layers whose inputs are also read by a skip connection.
fn added_to(text: Builder) -> Builder {
    text.embed(TOKENS, 4)
        .conv(12, 1)
        .residual(|b| b.attention(2).conv(12, 1))
        .residual(|b| b.gelu().conv(12, 1))
        .residual(|b| b.layer_norm().conv(12, 1))
}

fn residual(inputs: Builder) -> Builder {
    inputs
        .conv(8, 3)
        .norm()
        .relu()
        .residual(|b| b.conv_by(16, 3, 2).norm().relu().conv(16, 3).norm())
        .relu()
        .residual(|b| b.conv(16, 3).norm().relu().conv(16, 3).norm())
        .relu()
        .global_pool()
}

const SAMPLES: usize = 5;

fn batch(name: &str) -> Batch {
    let features = features(name);
    let mut dice = Dice::keyed(&[features as u64]);
    let mut input = || match name.starts_with("text") {
        true => dice.below(TOKENS as u64) as f32,
        false => dice.normal() as f32,
    };
    Batch {
        features,
        inputs: (0..features * SAMPLES).map(|_| input()).collect(),
        labels: (0..SAMPLES).map(|_| dice.below(3) as u32).collect(),
        keys: (0..SAMPLES as u64).collect(),
    }
}

fn features(name: &str) -> usize {
    match name {
        "softmax" => 7,
        "mlp" => 6,
        "text: attention, one position" => 2,
        "text: attention, many positions" => 38,
        "text: attention, wide heads" => 34,
        "text: transformer" | "text: dropout" => 8,
        name if name.starts_with("text") => 6,
        "one row" => 10,
        "one pixel" => 3,
        name if name.starts_with("residual") || name == "down to one pixel" => 32,
        _ => 90,
    }
}

/// Params none of which is zero; initial biases are, and would hide errors.
fn somewhere(model: &dyn Model, point: u64) -> Vec<f32> {
    let mut dice = Dice::keyed(&[point]);
    model.initial(5).iter().map(|x| x + 0.2 * dice.normal() as f32).collect()
}

fn gradient(net: &Net, params: &[f32], batch: &Batch) -> Gradient {
    let mut gradient = Gradient::zero(net.size());
    net.gradient(params, batch, &mut Scratch::default(), &mut gradient);
    gradient
}

/// The loss is in f32 and has kinks at the zeros of relus, so a step must be neither too small nor too large, and
/// some points are at a kink. A gradient is wrong if it agrees with no step at any of three points.
#[test]
fn every_gradient_is_the_slope_of_its_loss() {
    for (name, net) in networks() {
        let batch = batch(name);
        // A prime stride covers every channel and window pixel.
        let step = if net.params() > 500 { 7 } else { 1 };
        let mut doubtful: Vec<usize> = (0..net.params()).step_by(step).collect();
        for point in 1..=3 {
            let params = somewhere(&net, point);
            let given = gradient(&net, &params, &batch);
            doubtful.retain(|i| !is_slope(&net, &params, &batch, *i, given.sum[*i]));
            assert!(
                doubtful.len() < 1 + net.params() / 10,
                "{name} at point {point}: {doubtful:?}"
            );
        }
        assert!(doubtful.is_empty(), "{name}: params {doubtful:?}");
    }
}

fn is_slope(net: &Net, params: &[f32], batch: &Batch, i: usize, given: f32) -> bool {
    let mut moved = params.to_vec();
    let mut loss = |x: f32| {
        moved[i] = x;
        (f64::from(x), gradient(net, &moved, batch).loss_sum)
    };
    [8, 10, 12, 9, 11, 13].into_iter().any(|power| {
        let step = 0.5f32.powi(power);
        let ((x1, high), (x0, low)) = (loss(params[i] + step), loss(params[i] - step));
        let slope = (high - low) / (x1 - x0);
        (slope - f64::from(given)).abs() < 4e-3 * (1.0 + slope.abs())
    })
}

/// Batch norm is excluded because its gradient depends on the other samples of the batch.
#[test]
fn the_gradient_of_a_batch_is_the_sum_of_its_samples_gradients() {
    for (name, net) in networks().into_iter().filter(|(name, _)| !name.contains("batch norm")) {
        let params = somewhere(&net, 1);
        let whole = batch(name);
        let mut scratch = Scratch::default();
        let mut sum = Gradient::zero(net.size());
        for i in 0..SAMPLES {
            let features = i * whole.features..(i + 1) * whole.features;
            let one = Batch {
                features: whole.features,
                inputs: whole.inputs[features].to_vec(),
                labels: whole.labels[i..=i].to_vec(),
                keys: whole.keys[i..=i].to_vec(),
            };
            net.gradient(&params, &one, &mut scratch, &mut sum);
        }

        let given = gradient(&net, &params, &whole);

        let scale = given.sum.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (i, (a, b)) in given.sum.iter().zip(&sum.sum).enumerate() {
            assert!((a - b).abs() < 1e-4 * scale, "{name}, {i}: {a} and {b}");
        }
    }
}

#[test]
fn all_paths_agree_and_the_fused_ones_bit_by_bit() {
    let paths: Vec<Path> = Path::ALL.into_iter().filter(|path| path.is_here()).collect();
    for at in 0..networks().len() {
        let of = |path: Path| {
            let (name, net) = networks().swap_remove(at);
            let net = net.on(path);
            (name, gradient(&net, &somewhere(&net, 1), &batch(name)))
        };
        let (name, portable) = of(Path::Portable);
        let scale = portable.sum.iter().fold(0f32, |most, x| most.max(x.abs()));
        let mut fused: Option<Gradient> = None;
        for path in paths.iter().filter(|path| **path != Path::Portable) {
            let (_, gradient) = of(*path);
            for (i, (a, b)) in gradient.sum.iter().zip(&portable.sum).enumerate() {
                assert!((a - b).abs() < 1e-4 * scale, "{name} on {path:?}, {i}: {a} and {b}");
            }
            if let Some(fused) = &fused {
                assert!(*fused == gradient, "{name}: {path:?} differs");
            }
            fused = Some(gradient);
        }
    }
}

/// The first layer of a branch must not be fused into the layer before it, which the skip connection reads too.
#[test]
fn a_branch_does_not_change_the_layer_before_it() {
    let inputs = || Net::new(image(6, 5, 3)).conv(5, 3).relu();
    let loss = |net: Net| gradient(&net, &somewhere(&net, 1), &batch("conv 3x3")).loss_sum;
    // Over windows of one pixel the maximum is the mean, but only max pooling takes over the relu before it.
    let highest = loss(inputs().residual(|b| b.max_pool(1)).classes(3));
    assert_eq!(highest, loss(inputs().residual(|b| b.mean_pool(1)).classes(3)));
    let relu_first = || Net::new(image(6, 5, 3)).conv(5, 3).residual(|b| b.relu()).classes(3);
    assert!(
        std::panic::catch_unwind(relu_first).is_err(),
        "the branch has no layer that the relu could be fused into"
    );
    let norm_first = || Net::new(image(6, 5, 3)).conv(5, 3).residual(|b| b.norm()).classes(3);
    assert!(
        std::panic::catch_unwind(norm_first).is_err(),
        "the branch has no layer whose outputs only the norm reads"
    );
}

/// Weights that were packed for one gradient are used for the next one if the params are the same, and only then.
#[test]
fn earlier_uses_of_a_scratch_change_no_bit() {
    let nets = networks();
    let mut scratch = Scratch::default();
    for (name, net) in &nets {
        let batch = batch(name);
        let (here, there) = (somewhere(net, 1), somewhere(net, 2));
        for (i, params) in
            [&here, &here, &here, &there, &here, &there, &there, &there].into_iter().enumerate()
        {
            let mut again = Gradient::zero(net.size());
            net.gradient(params, &batch, &mut scratch, &mut again);
            assert_eq!(again, gradient(net, params, &batch), "{name}, gradient {i}");
            // The forward pass needs fewer packed weights than the backward pass.
            let fresh = net.evaluate(params, &batch, &mut Scratch::default());
            assert_eq!(net.evaluate(params, &batch, &mut scratch), fresh, "{name}, {i}");
        }
    }
}

fn charlm_of_two_layers(context: usize) -> Net {
    text(context).embed(TOKENS, 16).transformer(2, 2, 0.0).next_token(TOKENS)
}

fn tokens(context: usize, samples: usize, token: impl Fn(usize) -> usize) -> Batch {
    let features = context + 1;
    Batch {
        features,
        inputs: (0..features * samples).map(|i| token(i) as f32).collect(),
        labels: vec![0; samples],
        keys: (0..samples as u64).collect(),
    }
}

#[test]
fn a_later_token_changes_no_earlier_logit() {
    let context = 40;
    let net = charlm_of_two_layers(context);
    let params = somewhere(&net, 1);
    let before = tokens(context, 1, |i| i * i % TOKENS);
    let outputs = |batch: &Batch| net.outputs(&params, batch, &mut Scratch::default());

    for place in [1, 17, 32, 39] {
        let mut after = before.clone();
        after.inputs[place] = (before.inputs[place] + 1.0) % TOKENS as f32;

        let (before, after) = (outputs(&before), outputs(&after));

        assert_eq!(before[..place * TOKENS], after[..place * TOKENS]);
        assert_ne!(before[place * TOKENS..], after[place * TOKENS..]);
    }
}

#[test]
fn a_transformer_initially_predicts_all_tokens_alike_and_learns_a_period() {
    let context = 16;
    let net = charlm_of_two_layers(context);
    let batch = tokens(context, 8, |i| [0, 3, 1, 1, 4, 2, 0][i % 7]);
    let rule = Rule::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.0 };
    let optimizer = Optimizer { rule, clip_norm: None };
    let (mut params, mut state) = (net.initial(1), OptimizerState::default());
    let untrained = net.evaluate(&params, &batch, &mut Scratch::default());

    for _ in 0..60 {
        let gradient = gradient(&net, &params, &batch);
        optimizer.descend(&mut params, &mut state, &gradient, 0.01, &net.layout());
    }

    let trained = net.evaluate(&params, &batch, &mut Scratch::default());
    assert!((untrained.loss() - (TOKENS as f64).ln()).abs() < 0.1, "{untrained:?}");
    assert!(trained.loss() < 0.4 && trained.accuracy() > 0.9, "{trained:?}");
}

#[test]
fn an_invalid_token_is_clamped_to_the_nearest() {
    let net = charlm_of_two_layers(4);
    let params = net.initial(1);
    let mut wrong = tokens(4, 1, |_| 0);
    wrong.inputs = vec![-3.0, f32::NAN, 1e30, f32::INFINITY, TOKENS as f32];
    let mut right = wrong.clone();
    right.inputs = [0, 0, TOKENS - 1, TOKENS - 1, TOKENS - 1].map(|token| token as f32).to_vec();

    assert_eq!(gradient(&net, &params, &wrong), gradient(&net, &params, &right));
}

/// The sizes are those in docs/models.md.
#[test]
fn built_in_networks_have_the_documented_sizes() {
    let (mnist, cifar) = (image(28, 28, 1), image(32, 32, 3));
    let sizes = [
        net::softmax(64, 10),
        net::mlp(64, &[32], 10),
        net::mlp(784, &[256, 128], 10),
        net::cnn(mnist, 10),
        net::resnet(Net::new(cifar), 1, 10),
        net::resnet(Net::new(cifar), 3, 10),
        net::resnet18(Net::new(cifar), 10),
        net::charlm(64, 70),
    ]
    .map(|net| net.params());

    assert_eq!(sizes, [650, 2_410, 235_146, 206_922, 78_042, 272_474, 11_173_962, 819_526]);
    assert_eq!(net::resnet(Net::new(cifar).with_batch_norm(), 3, 10).buffers(), 1_568);
}
