//! Every layer's gradient is the slope of its loss, on every path that this processor has.

use paceline_learn::net::{self, Builder};
use paceline_learn::{Batch, Dice, Extent, Gradient, Model, Net, Path, Scratch};

fn image(height: usize, width: usize, channels: usize) -> Extent {
    Extent { height, width, channels }
}

/// Networks that hold every layer, at sizes around the blocks of the kernels.
fn networks() -> Vec<(&'static str, Net)> {
    let small = || Net::new(image(6, 5, 3));
    let wide = || Net::new(image(4, 4, 2));
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
        ("max pool", small().conv(8, 3).relu().max_pool(2).classes(3)),
        ("mean pool", small().conv(8, 3).relu().mean_pool(2).classes(3)),
        ("global pool", small().conv(8, 3).relu().global_pool().classes(3)),
        ("group norm", small().conv(16, 3).norm().relu().conv(5, 3).classes(3)),
        ("batch norm", small().with_batch_norm().conv(6, 3).norm().relu().conv(5, 3).classes(3)),
        ("dropout", small().conv(8, 3).relu().dropout(0.3).conv(5, 3).dropout(0.5).classes(3)),
        ("residual", wide().conv(8, 3).residual(|b| b.conv(8, 3).norm()).relu().classes(3)),
        ("residual, plain", wide().conv(4, 3).residual(|b| b.conv(4, 3).relu()).classes(3)),
        ("residual, strided", residual(wide()).classes(3)),
        ("residual, batch norm", residual(wide().with_batch_norm()).classes(3)),
    ]
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

fn batch(features: usize, samples: usize) -> Batch {
    let mut dice = Dice::keyed(&[features as u64]);
    Batch {
        features,
        inputs: (0..features * samples).map(|_| dice.normal() as f32).collect(),
        labels: (0..samples).map(|_| dice.below(3) as u32).collect(),
        keys: (0..samples as u64).collect(),
    }
}

fn features(name: &str) -> usize {
    match name {
        "softmax" => 7,
        "mlp" => 6,
        name if name.starts_with("residual") => 32,
        _ => 90,
    }
}

/// Params where nothing is zero: initial biases would hide mistakes.
fn somewhere(model: &dyn Model, point: u64) -> Vec<f32> {
    let mut dice = Dice::keyed(&[point]);
    model.initial(5).iter().map(|x| x + 0.2 * dice.normal() as f32).collect()
}

fn gradient(net: &Net, params: &[f32], batch: &Batch) -> Gradient {
    let mut gradient = Gradient::zero(net.size());
    net.gradient(params, batch, &mut Scratch::default(), &mut gradient);
    gradient
}

/// The loss is in f32 and has kinks where relus close, so a step must be neither too small nor too large,
/// and some points lie upon a kink: a gradient is wrong if no step fits at any of three points.
#[test]
fn every_gradient_is_the_slope_of_its_loss() {
    for (name, net) in networks() {
        let batch = batch(features(name), 5);
        // A prime step meets every channel and window pixel.
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

#[test]
fn all_paths_agree_and_the_fused_ones_bit_by_bit() {
    let paths: Vec<Path> = Path::ALL.into_iter().filter(|path| path.is_here()).collect();
    for at in 0..networks().len() {
        let of = |path: Path| {
            let (name, net) = networks().swap_remove(at);
            let net = net.on(path);
            (name, gradient(&net, &somewhere(&net, 1), &batch(features(name), 5)))
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

/// As docs/models.md says.
#[test]
fn named_networks_are_as_large_as_they_should_be() {
    let (mnist, cifar) = (image(28, 28, 1), image(32, 32, 3));
    let sizes = [
        net::softmax(64, 10),
        net::mlp(64, &[32], 10),
        net::mlp(784, &[256, 128], 10),
        net::cnn(mnist, 10),
        net::resnet(Net::new(cifar), 1, 10),
        net::resnet(Net::new(cifar), 3, 10),
        net::resnet18(Net::new(cifar), 10),
    ]
    .map(|net| net.params());

    assert_eq!(sizes, [650, 2_410, 235_146, 206_922, 78_042, 272_474, 11_173_962]);
    assert_eq!(net::resnet(Net::new(cifar).with_batch_norm(), 3, 10).buffers(), 1_568);
}
