//! Builds networks over rows of tokens: transformers and what they are made of.

use super::Builder;
use super::attention::Attention;
use super::conv::Conv;
use super::embed::Embed;
use super::gelu::Gelu;
use super::layer_norm::LayerNorm;
use crate::dataset::Extent;

impl Builder {
    /// Learned vectors for the tokens of a row and for their positions: the first layer, over rows of one
    /// token more than it gives places, for the last one is only a target.
    pub fn embed(self, vocabulary: usize, channels: usize) -> Builder {
        let Extent { height, width, channels: tokens } = self.extent();
        assert!(height * width == 1 && tokens >= 2, "tokens come in a row of two or more");
        assert!(vocabulary > 0 && channels > 0, "there are tokens, and channels for them");
        self.push(Embed { vocabulary, channels })
    }

    /// Brings the channels of each place to mean 0 and variance 1.
    pub fn layer_norm(self) -> Builder {
        let channels = self.extent().channels;
        self.push(LayerNorm { channels })
    }

    /// A smooth relu.
    pub fn gelu(self) -> Builder {
        self.push(Gelu)
    }

    /// Causal self-attention over queries, keys and values side by side, as a convolution of one pixel
    /// to three times the channels makes them.
    pub fn attention(self, heads: usize) -> Builder {
        let Extent { height, channels, .. } = self.extent();
        assert!(height == 1, "attention looks along one row of places");
        assert!(
            heads > 0 && channels % (3 * heads) == 0,
            "{channels} channels do not make queries, keys and values for {heads} heads"
        );
        self.push(Attention { heads, channels: channels / 3 })
    }

    /// The layers of a pre-norm transformer (Radford et al. 2019), each of attention, then two dense layers
    /// at each place, both added to what came in; a last norm follows them.
    pub fn transformer(self, layers: usize, heads: usize, dropout: f32) -> Builder {
        let channels = self.extent().channels;
        // So that the sum of all branches stays as it is, however many there are.
        let last = 1.0 / (2.0 * layers as f64).sqrt();
        let dropped = |b: Builder| if dropout > 0.0 { b.dropout(dropout) } else { b };
        let blocks = (0..layers).fold(dropped(self), |net, _| {
            net.residual(|b| {
                let b = b.layer_norm().dense_at_places(3 * channels, 1.0).attention(heads);
                dropped(b.dense_at_places(channels, last))
            })
            .residual(|b| {
                let b = b.layer_norm().dense_at_places(4 * channels, 1.0).gelu();
                dropped(b.dense_at_places(channels, last))
            })
        });
        blocks.layer_norm()
    }

    /// A convolution of one pixel whose weights start with variance gain^2 / inputs.
    fn dense_at_places(self, channels: usize, gain: f64) -> Builder {
        let conv = Conv::new(self.extent().channels, channels, 1, 1);
        self.push(Conv { gain: gain / 2f64.sqrt(), ..conv })
    }
}
