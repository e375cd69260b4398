//! The builder's methods for rows of tokens: transformers and their layers.

use super::Builder;
use super::attention::Attention;
use super::conv::Conv;
use super::embed::Embed;
use super::gelu::Gelu;
use super::layer_norm::LayerNorm;
use crate::dataset::Extent;

impl Builder {
    /// Learned vectors for the tokens of a row and for their positions. This must be the first layer. It has one
    /// position less than a row has tokens, because the last token is only a target.
    pub fn embed(self, vocabulary: usize, channels: usize) -> Builder {
        let Extent { height, width, channels: tokens } = self.extent();
        assert!(height * width == 1 && tokens >= 2, "the inputs are a row of at least two tokens");
        assert!(
            vocabulary > 0 && channels > 0,
            "an embedding has at least one token and one channel"
        );
        self.push(Embed { vocabulary, channels })
    }

    /// Normalizes the channels of each position to mean 0 and variance 1.
    pub fn layer_norm(mut self) -> Builder {
        let (name, channels) = (self.numbered("norm"), self.extent().channels);
        self.push_named(name, LayerNorm { channels })
    }

    /// A smooth relu.
    pub fn gelu(self) -> Builder {
        self.push(Gelu)
    }

    /// Causal self-attention. Its inputs are queries, keys and values side by side, as the outputs of a
    /// 1 x 1 convolution to three times the channels.
    pub fn attention(self, heads: usize) -> Builder {
        let Extent { height, channels, .. } = self.extent();
        assert!(height == 1, "attention needs a single row of positions");
        assert!(
            heads > 0 && channels % (3 * heads) == 0,
            "{channels} channels do not make queries, keys and values for {heads} heads"
        );
        self.push(Attention { heads, channels: channels / 3 })
    }

    /// The layers of a pre-norm transformer (Radford et al. 2019), each with a residual branch of attention and one
    /// of two dense layers per position; a final norm follows.
    pub fn transformer(self, layers: usize, heads: usize, dropout: f32) -> Builder {
        let channels = self.extent().channels;
        // Keeps the variance of the sum of all branches independent of their number.
        let last = 1.0 / (2.0 * layers as f64).sqrt();
        let dropped = |b: Builder| if dropout > 0.0 { b.dropout(dropout) } else { b };
        let mut net = dropped(self);
        for layer in 0..layers {
            // The names of `nn.TransformerEncoder`.
            let scope = net.unnumbered(&format!("encoder.layers.{layer}"));
            net = net.residual_in(&scope, |b| {
                let b = b.layer_norm().dense_at_positions("self_attn.in_proj_", 3 * channels, 1.0);
                dropped(b.attention(heads).dense_at_positions(
                    "self_attn.out_proj.",
                    channels,
                    last,
                ))
            });
            net = net.residual_in(&scope, |b| {
                let b = b.layer_norm().dense_at_positions("linear1.", 4 * channels, 1.0).gelu();
                dropped(b.dense_at_positions("linear2.", channels, last))
            });
        }
        let name = net.unnumbered("encoder.norm");
        net.push_named(name, LayerNorm { channels })
    }

    /// A dense layer at every position, whose initial weights have variance gain^2 / inputs.
    fn dense_at_positions(self, prefix: &str, channels: usize, gain: f64) -> Builder {
        let dense = Conv::dense(Extent::row(self.extent().channels), channels);
        let prefix = self.scoped(prefix);
        self.push_with_prefix(prefix, Conv { gain: gain / 2f64.sqrt(), ..dense })
    }
}
