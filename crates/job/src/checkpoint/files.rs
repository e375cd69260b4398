//! The files of one checkpoint: tensors and a manifest that describes them, all with checksums.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use paceline_learn::{Tensor, Vector};
use paceline_runtime::wire::Frame;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Manifest, Seal, version_1};
use crate::error::{CheckpointError, FileProblem, WriteProblem};
use crate::weights;

pub const MANIFEST: &str = "manifest.json";
pub const WEIGHTS: &str = "weights.safetensors";
pub const STATE: &str = "state.safetensors";
/// The name of the evaluated replica among the vectors of a checkpoint; before version 3 also in [`WEIGHTS`].
pub const PARAMS: &str = "params";

/// The version of the format that is written; all earlier ones can be read, too.
const VERSION: u32 = 4;
/// A manifest holds no parameters, so it is never longer than this.
const MANIFEST_BYTES_MAX: u64 = 1 << 28;

/// The manifest with its own checksum, over the exact bytes of `manifest`.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    version: u32,
    crc32: u32,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// The field that every version of the format has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

pub fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<(), WriteProblem> {
    let mut file = File::create(dir.join(MANIFEST))?;
    file.write_all(seal(manifest)?.as_bytes())?;
    Ok(file.sync_all()?)
}

/// The text of a manifest's file.
pub fn seal(manifest: &Manifest) -> Result<String, WriteProblem> {
    let text = serde_json::to_string(manifest)?;
    // JSON has no infinity: a manifest that cannot be read back must not replace an older one.
    serde_json::from_str::<Manifest>(&text).map_err(WriteProblem::NumbersNotFinite)?;
    let crc32 = crc32fast::hash(text.as_bytes());
    let manifest = RawValue::from_string(text)?;
    let sealed = Sealed { version: VERSION, crc32, manifest: &manifest };
    Ok(serde_json::to_string(&sealed)?)
}

pub fn read_manifest(dir: &Path) -> Result<Manifest, CheckpointError> {
    let path = dir.join(MANIFEST);
    let text = || -> io::Result<String> {
        let mut text = String::new();
        File::open(&path)?.take(MANIFEST_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let parsed = text().map_err(FileProblem::from).and_then(|text| parse(&text));
    parsed.map_err(|problem| CheckpointError::File { path, problem })
}

/// Reads the text of a manifest's file.
pub fn parse(text: &str) -> Result<Manifest, FileProblem> {
    let Version { version } = serde_json::from_str(text)?;
    if !(1..=VERSION).contains(&version) {
        return Err(FileProblem::Version { version, supported: VERSION });
    }
    let sealed: Sealed<'_> = serde_json::from_str(text)?;
    if crc32fast::hash(sealed.manifest.get().as_bytes()) != sealed.crc32 {
        return Err(FileProblem::Checksum);
    }
    let mut manifest: Manifest = match version {
        1 => {
            let old = serde_json::from_str(sealed.manifest.get())?;
            serde_json::from_value(version_1::upgrade(old))?
        }
        _ => serde_json::from_str(sealed.manifest.get())?,
    };
    if version < 3 {
        // Weights were one flat vector.
        let params = usize::try_from(manifest.params).unwrap_or(usize::MAX);
        manifest.weights = vec![Tensor::plain(PARAMS, &[params], 0)];
    }
    if version < 4 {
        // Nothing was held out for validation.
        manifest.job.validation = 0.0;
    }
    Ok(manifest)
}

/// Vectors, and bytes of hosts, by name, to be written to a file.
pub type Tensors<'a> = Vec<(String, Frame<'a>)>;

/// Writes tensors to the disk; returns length and checksum of the file.
pub fn write_tensors(path: &Path, tensors: &Tensors<'_>) -> Result<Seal, WriteProblem> {
    let views = tensors.iter().map(|(name, data)| (name, Flat::new(*data)));
    serialize_to_file(views, None, path)?;
    sync_and_seal(path)
}

/// Writes a replica to the disk, as the tensors that the manifest lists.
pub fn write_weights(
    path: &Path,
    params: &[f32],
    manifest: &Manifest,
    steps: u64,
) -> Result<Seal, WriteProblem> {
    weights::write(path, params, &manifest.weights, steps)?;
    sync_and_seal(path)
}

fn sync_and_seal(path: &Path) -> Result<Seal, WriteProblem> {
    // Some systems sync only files that are open for writing.
    let file = File::options().read(true).write(true).open(path)?;
    file.sync_all()?;
    Ok(seal_of(file)?)
}

struct Flat<'a> {
    shape: [usize; 1],
    data: Frame<'a>,
}

impl<'a> Flat<'a> {
    fn new(data: Frame<'a>) -> Flat<'a> {
        let length = match data {
            Frame::Floats(floats) => floats.len(),
            Frame::Bytes(bytes) => bytes.len(),
        };
        Flat { shape: [length], data }
    }
}

impl View for Flat<'_> {
    fn dtype(&self) -> Dtype {
        match self.data {
            Frame::Floats(_) => Dtype::F32,
            Frame::Bytes(_) => Dtype::U8,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.data {
            Frame::Floats(floats) => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Frame::Bytes(bytes) => Cow::Borrowed(bytes),
        }
    }

    fn data_len(&self) -> usize {
        match self.data {
            Frame::Floats(floats) => 4 * floats.len(),
            Frame::Bytes(bytes) => bytes.len(),
        }
    }
}

fn seal_of(file: File) -> io::Result<Seal> {
    let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), 0);
    let mut reader = BufReader::new(file);
    let mut block = vec![0; 1 << 16];
    loop {
        let read = reader.read(&mut block)?;
        if read == 0 {
            return Ok(Seal { bytes, crc32: hasher.finalize() });
        }
        hasher.update(&block[..read]);
        bytes += read as u64;
    }
}

/// The bytes of a file, if its length and checksum are those of the manifest.
pub fn read_sealed(
    dir: &Path,
    name: &str,
    manifest: &Manifest,
) -> Result<Vec<u8>, CheckpointError> {
    let path = dir.join(name);
    let seal = manifest.files.get(name).ok_or(FileProblem::Unlisted);
    let bytes = seal.and_then(|seal| read_with(&path, seal));
    bytes.map_err(|problem| CheckpointError::File { path, problem })
}

fn read_with(path: &Path, seal: &Seal) -> Result<Vec<u8>, FileProblem> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length != seal.bytes {
        return Err(FileProblem::Length { bytes: length, expected: seal.bytes });
    }
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    if crc32fast::hash(&bytes) != seal.crc32 {
        return Err(FileProblem::Checksum);
    }
    Ok(bytes)
}

pub fn read_params(dir: &Path, manifest: &Manifest) -> Result<Vector, CheckpointError> {
    let bytes = read_sealed(dir, WEIGHTS, manifest)?;
    let size = usize::try_from(manifest.params).unwrap_or(usize::MAX);
    weights::parse(&bytes, &manifest.weights, size)
        .map_err(|problem| CheckpointError::File { path: dir.join(WEIGHTS), problem })
}

/// The vector of that name.
pub fn vector(tensors: &SafeTensors<'_>, name: &str) -> Result<Vector, FileProblem> {
    Ok(weights::floats(data(tensors, name, Dtype::F32)?).collect())
}

/// The bytes of that name.
pub fn bytes(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<u8>, FileProblem> {
    Ok(data(tensors, name, Dtype::U8)?.to_vec())
}

fn data<'a>(
    tensors: &SafeTensors<'a>,
    name: &str,
    expected: Dtype,
) -> Result<&'a [u8], FileProblem> {
    let named = || name.to_owned();
    let tensor = tensors.tensor(name);
    let tensor = tensor.map_err(|source| FileProblem::Tensor { name: named(), source })?;
    let found = tensor.dtype();
    if found != expected {
        return Err(FileProblem::TensorType { name: named(), found, expected });
    }
    Ok(tensor.data())
}
