//! The built-in networks.

use super::{Builder, Net};
use crate::dataset::Extent;

/// Softmax regression. It is convex, so its weights are initially zero.
pub fn softmax(features: usize, classes: usize) -> Net {
    Net::new(Extent::row(features)).zero_classes(classes)
}

/// A multilayer perceptron with relu between its layers.
pub fn mlp(features: usize, hidden: &[usize], classes: usize) -> Net {
    let inputs = Net::new(Extent::row(features));
    hidden.iter().fold(inputs, |net, width| net.dense(*width).relu()).classes(classes)
}

/// A small convolutional network for images of about 8 to 32 pixels per side.
pub fn cnn(image: Extent, classes: usize) -> Net {
    Net::new(image)
        .conv(16, 3)
        .relu()
        .max_pool(2)
        .conv(32, 3)
        .relu()
        .max_pool(2)
        .dense(128)
        .relu()
        .classes(classes)
}

/// A residual network for small images (He et al. 2016, section 4.2): 6 n + 2 layers in three stages of n
/// blocks each.
pub fn resnet(inputs: Builder, n: usize, classes: usize) -> Net {
    let mut net = inputs.conv(16, 3).norm().relu();
    for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..n {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            net = basic_block(net, (stage, block), channels, stride);
        }
    }
    net.global_pool().classes(classes)
}

/// ResNet-18 in its variant for small images: four stages of two blocks, 64 to 512 channels.
pub fn resnet18(inputs: Builder, classes: usize) -> Net {
    let mut net = inputs.conv(64, 3).norm().relu();
    for (stage, channels) in [64, 128, 256, 512].into_iter().enumerate() {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            net = basic_block(net, (stage, block), channels, stride);
        }
    }
    net.global_pool().classes(classes)
}

/// A small character-level transformer, for rows of `context + 1` characters: 4 layers with 4 heads and 128
/// channels.
pub fn charlm(context: usize, vocabulary: usize) -> Net {
    let tokens = Net::new(Extent::row(context + 1));
    tokens.embed(vocabulary, 128).transformer(4, 4, 0.0).next_token(vocabulary)
}

/// A residual block, named as in torchvision.
fn basic_block(
    net: Builder,
    (stage, block): (usize, usize),
    channels: usize,
    stride: usize,
) -> Builder {
    net.residual_in(&format!("layer{}.{block}", stage + 1), |branch| {
        branch.conv_by(channels, 3, stride).norm().relu().conv(channels, 3).norm()
    })
    .relu()
}
