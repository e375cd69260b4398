//! Builds networks: a method per layer, then everything gets its place.

use super::add::Add;
use super::conv::Conv;
use super::dropout::Dropout;
use super::flat::Flat;
use super::layer::Layer;
use super::norm::{Norm, Over};
use super::place::assemble;
use super::pool::{Kind, Pool};
use super::{Head, Net};
use crate::dataset::Extent;
use crate::kernels::Path;

/// A network under construction; what is called next follows what was called before.
pub struct Builder {
    path: Path,
    extents: Vec<Extent>,
    nodes: Vec<Part>,
    norm: Over,
    /// The layers up to here have other readers than the next one: nothing may become a part of them.
    shared: usize,
}

/// A layer between two slots, not yet in its place.
pub(super) struct Part {
    pub layer: Box<dyn Layer>,
    pub from: usize,
    pub skip: Option<usize>,
    pub to: usize,
}

/// Channels that share a mean in group norm.
const GROUP: usize = 8;

impl Builder {
    pub(super) fn new(extent: Extent) -> Builder {
        assert!(!extent.is_empty(), "a network needs inputs");
        let (extents, nodes) = (vec![extent], Vec::new());
        Builder { path: Path::best(), extents, nodes, norm: Over::Group(GROUP), shared: 0 }
    }

    /// Norms look at all samples that pass together, not at groups of channels.
    pub fn with_batch_norm(mut self) -> Builder {
        self.norm = Over::Batch;
        self
    }

    /// Where the last layer leads.
    fn here(&self) -> usize {
        self.nodes.last().map_or(0, |node| node.to)
    }

    pub fn extent(&self) -> Extent {
        self.extents[self.here()]
    }

    pub(super) fn push(self, layer: impl Layer + 'static) -> Builder {
        let here = self.here();
        self.push_from(here, None, Box::new(layer))
    }

    fn push_from(mut self, from: usize, skip: Option<usize>, layer: Box<dyn Layer>) -> Builder {
        let to = self.extents.len();
        self.extents.push(layer.extent(self.extents[from]));
        self.nodes.push(Part { layer, from, skip, to });
        self
    }

    /// A convolution with a square window of odd size, which keeps height and width.
    pub fn conv(self, channels: usize, size: usize) -> Builder {
        self.conv_by(channels, size, 1)
    }

    /// A convolution that moves by `stride` pixels.
    pub fn conv_by(self, channels: usize, size: usize, stride: usize) -> Builder {
        let conv = Conv::new(self.extent().channels, channels, size, stride);
        self.push(conv)
    }

    /// A convolution with a frame of `pad` zeros around its inputs.
    pub fn conv_padded(self, channels: usize, size: usize, stride: usize, pad: usize) -> Builder {
        let conv = Conv::new(self.extent().channels, channels, size, stride);
        self.push(Conv { pad, ..conv })
    }

    /// All inputs to all outputs.
    pub fn dense(self, outputs: usize) -> Builder {
        let flat = self.flat();
        let conv = Conv::new(flat.extent().channels, outputs, 1, 1);
        flat.push(conv)
    }

    /// Takes an image as a plain row.
    fn flat(self) -> Builder {
        let Extent { height, width, .. } = self.extent();
        if height * width > 1 { self.push(Flat) } else { self }
    }

    /// Group norm, unless batch norm was asked for. A bias before it would be taken away again, so the
    /// layer before loses it.
    pub fn norm(mut self) -> Builder {
        let last = self.own_last();
        let last =
            last.expect("a norm follows a layer that nobody else reads: begin with another one");
        last.layer.drop_bias();
        let channels = self.extent().channels;
        let over = match self.norm {
            Over::Group(group) if channels.is_multiple_of(group) => Over::Group(group),
            Over::Group(_) => Over::Group(channels),
            Over::Batch => Over::Batch,
        };
        self.push(Norm { over, channels, relu: false, skips: false })
    }

    pub fn relu(mut self) -> Builder {
        let taken = self.own_last().is_some_and(|last| last.layer.take_relu());
        assert!(taken, "relu follows a layer that takes it in, such as a convolution or a norm");
        self
    }

    /// The highest of square windows that lie side by side.
    pub fn max_pool(mut self, size: usize) -> Builder {
        // The highest of relus is the relu of the highest, with less to do.
        let relu = self.own_last().is_some_and(|last| last.layer.give_relu());
        self.push(Pool { relu, ..Pool::new(Kind::Max, size, size) })
    }

    /// The mean of square windows that lie side by side.
    pub fn mean_pool(self, size: usize) -> Builder {
        self.push(Pool::new(Kind::Mean, size, size))
    }

    /// The mean of every channel over the whole image.
    pub fn global_pool(self) -> Builder {
        let Extent { height, width, .. } = self.extent();
        self.push(Pool::new(Kind::Mean, height, width))
    }

    /// The layer that the next one follows, if nobody else reads it.
    fn own_last(&mut self) -> Option<&mut Part> {
        self.nodes[self.shared..].last_mut()
    }

    /// Leaves out a part of the values, other ones for each sample and epoch.
    pub fn dropout(self, rate: f32) -> Builder {
        assert!((0.0..1.0).contains(&rate), "a part of the values is kept");
        let salt = self.nodes.len() as u64;
        self.push(Dropout { rate, salt })
    }

    /// Adds what came in to what the branch makes of it. Where their extents differ, what came in passes
    /// a convolution of one pixel and a norm.
    pub fn residual(mut self, branch: impl FnOnce(Builder) -> Builder) -> Builder {
        let (before, start) = (self.here(), self.nodes.len());
        let outer = std::mem::replace(&mut self.shared, start);
        self = branch(self);
        self.shared = outer;
        let (from, to) = (self.extents[before], self.extent());
        let end = self.here();
        let mut skip = before;
        if from != to {
            let stride = from.height.div_ceil(to.height);
            let branch = self.nodes.len();
            let conv = Conv::new(from.channels, to.channels, 1, stride);
            let conv = Conv { bias: false, ..conv };
            self = self.push_from(before, None, Box::new(conv)).norm();
            assert_eq!(self.extent(), to, "a convolution by {stride} makes up for the branch");
            skip = self.here();
            // What is added must be there before the branch ends.
            self.nodes[start..].rotate_left(branch - start);
        }
        let last = self.nodes.last_mut().expect("a branch has layers");
        assert_eq!(last.to, end, "the branch comes last");
        if last.layer.take_skip() {
            last.skip = Some(skip);
            return self;
        }
        self.push_from(end, Some(skip), Box::new(Add::default()))
    }

    /// Ends in one logit per class.
    pub fn classes(self, classes: usize) -> Net {
        self.dense(classes).finish(Head::Label, classes)
    }

    /// Ends in one logit per class, all of them zero at the start.
    pub fn zero_classes(self, classes: usize) -> Net {
        let flat = self.flat();
        let conv = Conv::new(flat.extent().channels, classes, 1, 1);
        flat.push(Conv { zero: true, ..conv }).finish(Head::Label, classes)
    }

    /// Ends in one logit per token at every place, for the token that comes next: all about equal at the
    /// start.
    pub fn next_token(self, tokens: usize) -> Net {
        let conv = Conv::new(self.extent().channels, tokens, 1, 1);
        self.push(Conv { gain: 0.1, ..conv }).finish(Head::Next, tokens)
    }

    fn finish(self, head: Head, classes: usize) -> Net {
        assemble(self.path, self.extents, self.nodes, head, classes)
    }
}
