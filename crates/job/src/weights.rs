//! Files of weights: a replica as named tensors in the safetensors format, as PyTorch has them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use paceline_learn::{Content, Tensor, Vector, layout};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, View, serialize_to_file};

use crate::error::{FileProblem, WriteProblem};

/// Writes a replica. `steps` is the number of steps that have moved its buffers.
pub fn write(
    path: &Path,
    replica: &[f32],
    tensors: &[Tensor],
    steps: u64,
) -> Result<(), WriteProblem> {
    layout::check(tensors, replica.len())?;
    // The mark by which some loaders recognize the order of PyTorch.
    let marks = [("format".to_owned(), "pt".to_owned())].into();
    let views = tensors.iter().map(|tensor| (&tensor.name, Written { tensor, replica, steps }));
    Ok(serialize_to_file(views, Some(marks), path)?)
}

/// A tensor that is turned into bytes when it is written.
struct Written<'a> {
    tensor: &'a Tensor,
    replica: &'a [f32],
    steps: u64,
}

impl View for Written<'_> {
    fn dtype(&self) -> Dtype {
        dtype(self.tensor)
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match &self.tensor.content {
            Content::Values(values) => {
                values.read(self.replica).iter().flat_map(|x| x.to_le_bytes()).collect()
            }
            Content::Steps => self.steps.to_le_bytes().to_vec().into(),
        }
    }

    fn data_len(&self) -> usize {
        match self.tensor.dtype() {
            layout::Dtype::F32 => 4 * self.tensor.range().len(),
            layout::Dtype::I64 => 8,
        }
    }
}

fn dtype(tensor: &Tensor) -> Dtype {
    match tensor.dtype() {
        layout::Dtype::F32 => Dtype::F32,
        layout::Dtype::I64 => Dtype::I64,
    }
}

/// Reads a replica of `size` values, for example one that PyTorch has trained: the file must have exactly these
/// tensors. Those of a model are `model.layout().tensors`.
pub fn read(path: &Path, tensors: &[Tensor], size: usize) -> Result<Vector, FileProblem> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    parse(&bytes, tensors, size)
}

/// The replica in the bytes of a file. Memory for it is taken only after all shapes are found to fit the file.
pub fn parse(bytes: &[u8], tensors: &[Tensor], size: usize) -> Result<Vector, FileProblem> {
    layout::check(tensors, size)?;
    let file = SafeTensors::deserialize(bytes)?;
    let views = tensors.iter().map(|tensor| find(&file, tensor));
    let views = views.collect::<Result<Vec<TensorView<'_>>, FileProblem>>()?;
    let known: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    if let Some(name) = file.names().into_iter().filter(|name| !known.contains(name)).min() {
        return Err(FileProblem::UnknownTensor { name: name.chars().take(NAME_MAX).collect() });
    }
    let mut replica = Vector::zeros(size);
    for (tensor, view) in tensors.iter().zip(views) {
        if let Content::Values(values) = &tensor.content {
            values.write(floats(view.data()), &mut replica);
        }
    }
    Ok(replica)
}

/// The most characters of an unknown name that a message shows.
const NAME_MAX: usize = 100;

fn find<'a>(file: &SafeTensors<'a>, tensor: &Tensor) -> Result<TensorView<'a>, FileProblem> {
    let name = || tensor.name.clone();
    let view = file.tensor(&tensor.name);
    let view = view.map_err(|_| FileProblem::MissingTensor { name: name() })?;
    let (found, expected) = (view.dtype(), dtype(tensor));
    if found != expected {
        return Err(FileProblem::TensorType { name: name(), found, expected });
    }
    if view.shape() != tensor.shape {
        let (shape, expected) = (view.shape().to_vec(), tensor.shape.clone());
        return Err(FileProblem::TensorShape { name: name(), shape, expected });
    }
    Ok(view)
}

/// The numbers of a tensor of 32-bit floats.
pub(crate) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let four = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("chunks have four bytes"));
    bytes.chunks_exact(4).map(four)
}
