//! How an activation lies in memory: rows of pixels with channels last, in a frame of zeros.

use crate::dataset::Extent;
use crate::kernels::{Lay, Places};

/// A frame saves convolutions from asking at every pixel whether they look beyond the edge.
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

    /// Where the first pixel inside the frame begins.
    pub fn start(&self) -> usize {
        self.pad * self.row() + self.pad * self.extent.channels
    }

    /// The pixels of `samples` samples; without a frame they are the rows of one matrix.
    pub fn places(&self, samples: usize) -> Places {
        let Extent { height, width, .. } = self.extent;
        match self.pad {
            0 => Places::matrix(samples * height * width),
            _ => Places { images: samples, rows: height, columns: width },
        }
    }

    pub fn lay(&self) -> Lay {
        let (image, row) = (self.len(), self.row());
        Lay { start: self.start(), image, row, column: self.extent.channels }
    }

    /// Where the inner rows of `samples` samples begin, and how long they are: one long row if there is
    /// no frame.
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

/// The inner rows of frames of one extent side by side: where each begins, and their common length.
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
