//! The memory layout of an activation: rows of pixels with channels last, in a frame of zeros (padding).

use crate::dataset::Extent;
use crate::kernels::{Positions, Strides};

/// With a frame of zeros, convolutions need not check at every pixel whether their window crosses the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub extent: Extent,
    pub pad: usize,
}

impl Frame {
    /// Floats from one row to the next.
    pub fn row(&self) -> usize {
        (self.extent.width + 2 * self.pad) * self.extent.channels
    }

    /// Floats from one sample to the next.
    pub fn len(&self) -> usize {
        (self.extent.height + 2 * self.pad) * self.row()
    }

    /// Where the first pixel begins.
    pub fn start(&self) -> usize {
        self.pad * self.row() + self.pad * self.extent.channels
    }

    /// The pixels of `samples` samples; without a frame they are the rows of one matrix.
    pub fn positions(&self, samples: usize) -> Positions {
        let Extent { height, width, .. } = self.extent;
        match self.pad {
            0 => Positions::matrix(samples * height * width),
            _ => Positions { images: samples, rows: height, columns: width },
        }
    }

    pub fn strides(&self) -> Strides {
        let (image, row) = (self.len(), self.row());
        Strides { start: self.start(), image, row, column: self.extent.channels }
    }

    /// Where the rows of pixels of `samples` samples begin, and their length. Without padding, a sample is one
    /// long row.
    pub fn rows(&self, samples: usize) -> (impl Iterator<Item = usize> + use<>, usize) {
        let (height, len) = match self.pad {
            0 => (1, self.len()),
            _ => (self.extent.height, self.extent.width * self.extent.channels),
        };
        let (sample, row, start) = (self.len(), self.row(), self.start());
        let starts = (0..samples)
            .flat_map(move |image| (0..height).map(move |y| start + image * sample + y * row));
        (starts, len)
    }
}

/// Where the corresponding rows of pixels begin in several frames of one extent, and their common length.
pub fn side_by_side<const N: usize>(
    frames: [Frame; N],
    samples: usize,
) -> (impl Iterator<Item = [usize; N]>, usize) {
    let Extent { height, width, channels } = frames[0].extent;
    let plain = frames.iter().all(|frame| frame.pad == 0);
    let (rows, len) =
        if plain { (1, height * width * channels) } else { (height, width * channels) };
    let starts = (0..samples).flat_map(move |image| {
        (0..rows).map(move |y| frames.map(|f| f.start() + image * f.len() + y * f.row()))
    });
    (starts, len)
}
