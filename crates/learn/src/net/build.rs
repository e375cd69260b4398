//! The builder of networks, with one method per kind of layer.

use std::collections::BTreeSet;

use super::add::Add;
use super::assemble::assemble;
use super::conv::Conv;
use super::dropout::Dropout;
use super::flat::Flat;
use super::layer::Layer;
use super::norm::{Norm, Over};
use super::part::Part;
use super::pool::{Kind, Pool};
use super::{Head, Net};
use crate::dataset::Extent;
use crate::kernels::Path;

/// A network under construction. Each method appends layers.
pub struct Builder {
    path: Path,
    extents: Vec<Extent>,
    nodes: Vec<Part>,
    norm: Over,
    /// The outputs of the first `shared` layers are also read by a residual branch: nothing may be fused into
    /// these layers.
    shared: usize,
    /// What the names of the next layers begin with.
    scope: String,
    /// The names of all layers so far.
    names: BTreeSet<String>,
}

/// Channels that share a mean in group norm.
const GROUP: usize = 8;

impl Builder {
    pub(super) fn new(extent: Extent) -> Builder {
        assert!(!extent.is_empty(), "a network needs inputs");
        let (extents, nodes) = (vec![extent], Vec::new());
        let (scope, names) = (String::new(), BTreeSet::new());
        let norm = Over::Group(GROUP);
        Builder { path: Path::best(), extents, nodes, norm, shared: 0, scope, names }
    }

    /// Makes `norm` append batch norm instead of group norm.
    pub fn with_batch_norm(mut self) -> Builder {
        self.norm = Over::Batch;
        self
    }

    /// The slot of the last layer's outputs.
    fn last_slot(&self) -> usize {
        self.nodes.last().map_or(0, |node| node.to)
    }

    pub fn extent(&self) -> Extent {
        self.extents[self.last_slot()]
    }

    /// The name that a layer gets: `stem` in the current scope, with the first number that is not taken.
    pub(super) fn numbered(&mut self, stem: &str) -> String {
        let names = (1..).map(|number: u64| format!("{}{stem}{number}", self.scope));
        let mut free = names.filter(|name| !self.names.contains(name));
        let name = free.next().expect("there are enough numbers");
        self.names.insert(name.clone());
        name
    }

    /// The same without a number, unless the name is taken.
    pub(super) fn unnumbered(&mut self, stem: &str) -> String {
        let name = self.scoped(stem);
        if self.names.insert(name.clone()) { name } else { self.numbered(stem) }
    }

    /// A name or prefix in the current scope.
    pub(super) fn scoped(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    /// Appends a layer without tensors.
    pub(super) fn push(self, layer: impl Layer + 'static) -> Builder {
        self.push_with_prefix(String::new(), layer)
    }

    /// Appends a layer; the name of its tensor `weight` is `NAME.weight`.
    pub(super) fn push_named(self, name: String, layer: impl Layer + 'static) -> Builder {
        self.push_with_prefix(name + ".", layer)
    }

    pub(super) fn push_with_prefix(self, prefix: String, layer: impl Layer + 'static) -> Builder {
        let from = self.last_slot();
        self.push_from(from, None, prefix, Box::new(layer))
    }

    fn push_from(
        mut self,
        from: usize,
        skip: Option<usize>,
        prefix: String,
        layer: Box<dyn Layer>,
    ) -> Builder {
        let to = self.extents.len();
        self.extents.push(layer.extent(self.extents[from]));
        self.nodes.push(Part { layer, prefix, from, skip, to });
        self
    }

    /// A convolution with a square window of odd size, which keeps height and width.
    pub fn conv(self, channels: usize, size: usize) -> Builder {
        self.conv_by(channels, size, 1)
    }

    /// A convolution that moves by `stride` pixels.
    pub fn conv_by(mut self, channels: usize, size: usize, stride: usize) -> Builder {
        let conv = Conv::new(self.extent().channels, channels, size, stride);
        let name = self.numbered("conv");
        self.push_named(name, conv)
    }

    /// A convolution that pads its inputs with `pad` rows and columns of zeros on each side.
    pub fn conv_padded(
        mut self,
        channels: usize,
        size: usize,
        stride: usize,
        pad: usize,
    ) -> Builder {
        let conv = Conv::new(self.extent().channels, channels, size, stride);
        let name = self.numbered("conv");
        self.push_named(name, Conv { pad, ..conv })
    }

    /// A dense layer.
    pub fn dense(mut self, outputs: usize) -> Builder {
        let (name, dense) = (self.numbered("fc"), Conv::dense(self.extent(), outputs));
        self.flat().push_named(name, dense)
    }

    /// Turns an image into a plain row.
    fn flat(self) -> Builder {
        let Extent { height, width, .. } = self.extent();
        if height * width > 1 { self.push(Flat) } else { self }
    }

    /// Group norm, or batch norm after `with_batch_norm`. Removes the bias of the layer before it, which the norm
    /// would cancel.
    pub fn norm(mut self) -> Builder {
        // The usual name in PyTorch's residual networks, whatever the kind of norm.
        let name = self.numbered("bn");
        self.norm_named(name)
    }

    fn norm_named(mut self, name: String) -> Builder {
        let last = self.unshared_last();
        let last = last.expect(
            "a norm follows a layer whose outputs nothing else reads: put a layer before it",
        );
        last.layer.drop_bias();
        let channels = self.extent().channels;
        let over = match self.norm {
            Over::Group(group) if channels.is_multiple_of(group) => Over::Group(group),
            Over::Group(_) => Over::Group(channels),
            Over::Batch => Over::Batch,
        };
        self.push_named(name, Norm { over, channels, relu: false, skips: false })
    }

    pub fn relu(mut self) -> Builder {
        let is_fused = self.unshared_last().is_some_and(|last| last.layer.fuse_relu());
        assert!(
            is_fused,
            "relu follows a layer that it can be fused into, such as a convolution or a norm"
        );
        self
    }

    /// The maximum of adjacent square windows.
    pub fn max_pool(mut self, size: usize) -> Builder {
        // The maximum of relus is the relu of the maximum, and the latter takes fewer operations.
        let relu = self.unshared_last().is_some_and(|last| last.layer.remove_relu());
        self.push(Pool { relu, ..Pool::new(Kind::Max, size, size) })
    }

    /// The mean of adjacent square windows.
    pub fn mean_pool(self, size: usize) -> Builder {
        self.push(Pool::new(Kind::Mean, size, size))
    }

    /// The mean of every channel over the whole image.
    pub fn global_pool(self) -> Builder {
        let Extent { height, width, .. } = self.extent();
        self.push(Pool::new(Kind::Mean, height, width))
    }

    /// The last layer, unless a residual branch also reads its outputs.
    fn unshared_last(&mut self) -> Option<&mut Part> {
        self.nodes[self.shared..].last_mut()
    }

    /// Sets a fraction `rate` of the values to 0, different ones for each sample and epoch.
    pub fn dropout(self, rate: f32) -> Builder {
        assert!((0.0..1.0).contains(&rate), "the dropout rate is at least 0 and below 1");
        let salt = self.nodes.len() as u64;
        self.push(Dropout { rate, salt })
    }

    /// Adds the inputs of the branch to its outputs. If their extents differ, the inputs first pass a
    /// 1 x 1 convolution and a norm.
    pub fn residual(mut self, branch: impl FnOnce(Builder) -> Builder) -> Builder {
        let scope = self.numbered("block");
        self.residual_in(&scope, branch)
    }

    /// The same; the names of the branch's layers begin with `SCOPE.`.
    pub(super) fn residual_in(
        mut self,
        scope: &str,
        branch: impl FnOnce(Builder) -> Builder,
    ) -> Builder {
        let outer_scope = std::mem::replace(&mut self.scope, format!("{scope}."));
        self = self.residual_unnamed(branch);
        self.scope = outer_scope;
        self
    }

    fn residual_unnamed(mut self, branch: impl FnOnce(Builder) -> Builder) -> Builder {
        let (before, start) = (self.last_slot(), self.nodes.len());
        let outer = std::mem::replace(&mut self.shared, start);
        self = branch(self);
        self.shared = outer;
        let (from, to) = (self.extents[before], self.extent());
        let end = self.last_slot();
        let mut skip = before;
        if from != to {
            let stride = from.height.div_ceil(to.height);
            let branch = self.nodes.len();
            let conv = Conv::new(from.channels, to.channels, 1, stride);
            let conv = Conv { bias: false, ..conv };
            let [conv_name, norm_name] =
                [0, 1].map(|i| self.unnumbered(&format!("downsample.{i}")));
            let prefix = conv_name + ".";
            self = self.push_from(before, None, prefix, Box::new(conv)).norm_named(norm_name);
            assert_eq!(
                self.extent(),
                to,
                "a convolution with stride {stride} has the extent of the branch"
            );
            skip = self.last_slot();
            // The skip connection must be computed before the branch ends.
            self.nodes[start..].rotate_left(branch - start);
        }
        let last = self.nodes.last_mut().expect("a residual branch has at least one layer");
        assert_eq!(last.to, end, "the last layer is the end of the branch");
        if last.layer.fuse_skip() {
            last.skip = Some(skip);
            return self;
        }
        self.push_from(end, Some(skip), String::new(), Box::new(Add::default()))
    }

    /// Ends the network with one logit per class.
    pub fn classes(mut self, classes: usize) -> Net {
        let (name, dense) = (self.unnumbered("fc"), Conv::dense(self.extent(), classes));
        self.flat().push_named(name, dense).finish(Head::Label, classes)
    }

    /// Ends the network with one logit per class, all of them zero before training.
    pub fn zero_classes(mut self, classes: usize) -> Net {
        let (name, dense) = (self.unnumbered("fc"), Conv::dense(self.extent(), classes));
        let zero = Conv { zero: true, ..dense };
        self.flat().push_named(name, zero).finish(Head::Label, classes)
    }

    /// Ends the network with one logit per token at every position, to predict the next token. Before training
    /// they are about equal.
    pub fn next_token(mut self, tokens: usize) -> Net {
        let dense = Conv::dense(Extent::row(self.extent().channels), tokens);
        let name = self.unnumbered("head");
        self.push_named(name, Conv { gain: 0.1, ..dense }).finish(Head::NextToken, tokens)
    }

    fn finish(self, head: Head, classes: usize) -> Net {
        assemble(self.path, self.extents, self.nodes, head, classes)
    }
}
