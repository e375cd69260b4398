//! How a replica is divided: parameters and buffers, and the tensors that other programs know them as.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Which values of a replica are parameters, which of them have weight decay, and which tensors they form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The number of learned parameters; buffers follow them.
    pub params: usize,
    /// The ranges without weight decay, in ascending order.
    pub undecayed: Vec<Range<usize>>,
    /// The tensors of a file of weights. Their ranges follow each other and cover the replica.
    pub tensors: Vec<Tensor>,
}

impl Layout {
    /// All values are parameters with weight decay, and have no names.
    pub fn plain() -> Layout {
        Layout { params: usize::MAX, undecayed: Vec::new(), tensors: Vec::new() }
    }
}

/// A tensor with the name and the shape that PyTorch gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub content: Content,
}

/// Where the numbers of a tensor come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// 32-bit floats of the replica.
    Values(Values),
    /// One 64-bit integer: the number of steps that have moved the buffers. It is not part of a replica.
    Steps,
}

/// The type of a tensor's numbers in a file of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    I64,
}

/// A range of the replica, and the order in which a file has its values.
///
/// In memory, the values are an array with these sides, the last of which is contiguous. In a file, the sides stand
/// in another order: side `order[0]` of the memory comes first. The shape in the file may join adjacent sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    pub range: Range<usize>,
    pub sides: Vec<usize>,
    pub order: Vec<usize>,
}

/// A description of tensors that does not fit a replica.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error("two tensors have the name {name}")]
    SameName { name: String },
    #[error("the shape of tensor {name} does not fit its range of the parameters")]
    Shape { name: String },
    #[error("tensor {name} does not begin where the one before it ends")]
    Gap { name: String },
    #[error("the tensors have {values} values, but there are {size} parameters")]
    Size { values: usize, size: usize },
}

impl Tensor {
    /// A tensor whose values have the same order in memory and in a file.
    pub fn plain(name: &str, shape: &[usize], start: usize) -> Tensor {
        let order: Vec<usize> = (0..shape.len()).collect();
        Tensor::permuted(name, shape, start, shape, &order)
    }

    /// A tensor whose values are stored with these sides, and have another order in a file.
    pub fn permuted(
        name: &str,
        shape: &[usize],
        start: usize,
        sides: &[usize],
        order: &[usize],
    ) -> Tensor {
        let range = start..start + sides.iter().product::<usize>();
        let values = Values { range, sides: sides.to_vec(), order: order.to_vec() };
        let content = Content::Values(values);
        Tensor { name: name.to_owned(), shape: shape.to_vec(), content }
    }

    /// The number of steps.
    pub fn steps(name: &str) -> Tensor {
        Tensor { name: name.to_owned(), shape: vec![], content: Content::Steps }
    }

    /// It follows from the content: replicas are 32-bit floats.
    pub fn dtype(&self) -> Dtype {
        match self.content {
            Content::Values(_) => Dtype::F32,
            Content::Steps => Dtype::I64,
        }
    }

    /// Its place in the replica; empty if it is not part of it.
    pub fn range(&self) -> Range<usize> {
        match &self.content {
            Content::Values(values) => values.range.clone(),
            Content::Steps => 0..0,
        }
    }

    /// The same tensor of a layer with this prefix, whose values begin at `start`.
    pub(crate) fn within(mut self, prefix: &str, start: usize) -> Tensor {
        self.name.insert_str(0, prefix);
        if let Content::Values(Values { range, .. }) = &mut self.content {
            *range = range.start + start..range.end + start;
        }
        self
    }
}

impl Values {
    /// The values in the order of a file.
    pub fn read(&self, replica: &[f32]) -> Vec<f32> {
        let values = &replica[self.range.clone()];
        if self.is_in_order() {
            return values.to_vec();
        }
        self.offsets().map(|at| values[at]).collect()
    }

    /// Stores values that are in the order of a file.
    pub fn write(&self, from: impl Iterator<Item = f32>, replica: &mut [f32]) {
        let values = &mut replica[self.range.clone()];
        self.offsets().zip(from).for_each(|(at, value)| values[at] = value);
    }

    fn is_in_order(&self) -> bool {
        self.order.is_sorted()
    }

    /// Where each value of the file is in memory.
    fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        // Saturating, because beside a side of 0 the others may be of any length; there are no offsets then.
        let stride = |side: usize| {
            self.sides[side + 1..].iter().fold(1_usize, |stride, side| stride.saturating_mul(*side))
        };
        let strides: Vec<usize> = self.order.iter().map(|side| stride(*side)).collect();
        let sides: Vec<usize> = self.order.iter().map(|side| self.sides[*side]).collect();
        let mut index = vec![0; sides.len()];
        let (mut offset, mut left) = (0, self.range.len());
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let at = offset;
            for side in (0..sides.len()).rev() {
                index[side] += 1;
                offset += strides[side];
                if index[side] < sides[side] {
                    break;
                }
                offset -= sides[side] * strides[side];
                index[side] = 0;
            }
            Some(at)
        })
    }

    /// Whether sides, order and shape describe exactly the values of the range.
    fn fits(&self, shape: &[usize]) -> bool {
        let product = |sides: &[usize]| sides.iter().try_fold(1_usize, |n, x| n.checked_mul(*x));
        let mut order = self.order.clone();
        order.sort_unstable();
        let len = self.range.end.checked_sub(self.range.start);
        len.is_some()
            && product(&self.sides) == len
            && product(shape) == len
            && order.into_iter().eq(0..self.sides.len())
    }
}

/// Whether tensors, which may come from a file, cover a replica of this size.
pub fn check(tensors: &[Tensor], size: usize) -> Result<(), LayoutError> {
    let (mut names, mut end) = (BTreeSet::new(), 0);
    for Tensor { name, shape, content } in tensors {
        let named = || name.clone();
        if !names.insert(name) {
            return Err(LayoutError::SameName { name: named() });
        }
        match content {
            Content::Steps if shape.is_empty() => {}
            Content::Values(values) if values.fits(shape) => {
                if values.range.start != end {
                    return Err(LayoutError::Gap { name: named() });
                }
                end = values.range.end;
            }
            _ => return Err(LayoutError::Shape { name: named() }),
        }
    }
    if end == size { Ok(()) } else { Err(LayoutError::Size { values: end, size }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_has_a_type_and_a_range() {
        let (weight, steps) = (Tensor::plain("weight", &[2, 3], 4), Tensor::steps("n"));

        assert_eq!((weight.dtype(), weight.range()), (Dtype::F32, 4..10));
        assert_eq!((steps.dtype(), steps.range()), (Dtype::I64, 0..0));
        assert_eq!(weight.within("fc.", 10).range(), 14..20);
    }

    #[test]
    fn a_transposed_matrix_is_written_by_columns_and_read_back() {
        let tensor = Tensor::permuted("weight", &[3, 2], 1, &[2, 3], &[1, 0]);
        let Content::Values(values) = tensor.content else { panic!("it has values") };
        let replica = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0];

        let written = values.read(&replica);
        let mut again = [9.0; 8];
        values.write(written.iter().copied(), &mut again);

        assert_eq!(written, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(again, replica);
    }

    #[test]
    fn sides_in_any_order_are_read_back_the_same() {
        let replica: Vec<f32> = (0..120).map(|x| x as f32).collect();
        for order in [[0, 1, 2, 3], [3, 2, 0, 1], [2, 3, 1, 0], [1, 0, 3, 2]] {
            let values = Values { range: 0..120, sides: vec![2, 3, 4, 5], order: order.to_vec() };

            let written = values.read(&replica);
            let mut again = vec![0.0; 120];
            values.write(written.iter().copied(), &mut again);

            assert_eq!(again, replica, "{order:?}");
            let second_differs_by = [60, 20, 5, 1][order[3]];
            assert_eq!(written[1], second_differs_by as f32, "{order:?}");
        }
    }

    #[test]
    fn a_tensor_without_values_may_have_any_other_sides() {
        let sides = vec![usize::MAX, usize::MAX, 0];
        let values = Values { range: 0..0, sides: vec![0, usize::MAX, 5], order: vec![2, 0, 1] };
        assert_eq!(values.read(&[]), [0.0; 0]);
        values.write(std::iter::empty(), &mut []);

        let tensor = |sides: &[usize]| Tensor {
            name: "a".into(),
            shape: vec![0],
            content: Content::Values(Values { sides: sides.to_vec(), ..values.clone() }),
        };
        assert_eq!(check(&[tensor(&[0, usize::MAX, 5])], 0), Ok(()));
        assert_eq!(check(&[tensor(&sides)], 0), Err(LayoutError::Shape { name: "a".into() }));
    }

    #[test]
    fn tensors_that_do_not_cover_a_replica_are_rejected() {
        let (a, b) = (Tensor::plain("a", &[2], 0), Tensor::plain("b", &[3], 2));
        let bent = |shape: &[usize], sides: &[usize], order: &[usize]| {
            let values = Values { range: 2..5, sides: sides.to_vec(), order: order.to_vec() };
            let content = Content::Values(values);
            vec![a.clone(), Tensor { name: "b".into(), shape: shape.to_vec(), content }]
        };
        let shape = || Err(LayoutError::Shape { name: "b".into() });

        assert_eq!(check(&[a.clone(), b.clone()], 5), Ok(()));
        assert_eq!(check(&[a.clone(), b.clone(), Tensor::steps("n")], 5), Ok(()));
        let size = LayoutError::Size { values: 5, size: 6 };
        assert_eq!(check(&[a.clone(), b.clone()], 6), Err(size));
        assert_eq!(check(std::slice::from_ref(&b), 5), Err(LayoutError::Gap { name: "b".into() }));
        let same = LayoutError::SameName { name: "a".into() };
        assert_eq!(check(&[a.clone(), a.clone()], 2), Err(same));
        assert_eq!(check(&bent(&[3], &[3], &[0]), 5), Ok(()));
        assert_eq!(check(&bent(&[4], &[3], &[0]), 5), shape());
        assert_eq!(check(&bent(&[3], &[4], &[0]), 5), shape());
        assert_eq!(check(&bent(&[3], &[3], &[1]), 5), shape());
        assert_eq!(check(&bent(&[3], &[3, 1], &[0, 0]), 5), shape());
        assert_eq!(check(&bent(&[usize::MAX, 3], &[3], &[0]), 5), shape());
    }
}
