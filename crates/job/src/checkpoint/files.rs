//! One checkpoint as files: tensors beside a manifest that says what they are, all with checksums.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Manifest, Seal, version_1};

pub const MANIFEST: &str = "manifest.json";
pub const WEIGHTS: &str = "weights.safetensors";
pub const STATE: &str = "state.safetensors";
/// The tensor in [`WEIGHTS`].
pub const PARAMS: &str = "params";

/// The version of the format that is written; version 1 can be read, too.
const VERSION: u32 = 2;
/// A manifest lists samples and members, never parameters.
const MANIFEST_BYTES_MAX: u64 = 1 << 28;

/// The manifest with its own checksum, over the exact bytes of `manifest`.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    version: u32,
    crc32: u32,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// Only what every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

pub fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<(), String> {
    let text = serde_json::to_string(manifest).map_err(|error| error.to_string())?;
    // JSON knows no infinity: what cannot be read again must not replace what can.
    serde_json::from_str::<Manifest>(&text)
        .map_err(|error| format!("its numbers are not finite ({error})"))?;
    let crc32 = crc32fast::hash(text.as_bytes());
    let manifest = RawValue::from_string(text).map_err(|error| error.to_string())?;
    let sealed = Sealed { version: VERSION, crc32, manifest: &manifest };
    let text = serde_json::to_string(&sealed).map_err(|error| error.to_string())?;
    let write = || -> io::Result<()> {
        let mut file = File::create(dir.join(MANIFEST))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| error.to_string())
}

pub fn read_manifest(dir: &Path) -> Result<Manifest, String> {
    let name = |what: String| format!("{}: {what}", dir.join(MANIFEST).display());
    let read = || -> io::Result<String> {
        let file = File::open(dir.join(MANIFEST))?;
        let mut text = String::new();
        file.take(MANIFEST_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| name(error.to_string()))?;
    let damaged = |error: serde_json::Error| name(format!("damaged ({error})"));
    let Version { version } = serde_json::from_str(&text).map_err(damaged)?;
    if !(1..=VERSION).contains(&version) {
        return Err(name(format!(
            "version {version} of the format, but this program reads versions 1 to {VERSION}"
        )));
    }
    let sealed: Sealed<'_> = serde_json::from_str(&text).map_err(damaged)?;
    if crc32fast::hash(sealed.manifest.get().as_bytes()) != sealed.crc32 {
        return Err(name("damaged (its checksum is wrong)".into()));
    }
    if version == 1 {
        let old = serde_json::from_str(sealed.manifest.get()).map_err(damaged)?;
        return serde_json::from_value(version_1::upgrade(old)).map_err(damaged);
    }
    serde_json::from_str(sealed.manifest.get()).map_err(damaged)
}

/// Vectors by name, on their way to a file.
pub type Tensors<'a> = Vec<(String, Cow<'a, [f32]>)>;

/// Writes tensors so that they are on the disk, and gives what the file is like.
pub fn write_tensors(path: &Path, tensors: &Tensors<'_>) -> Result<Seal, String> {
    let views = tensors.iter().map(|(name, data)| (name, Flat { shape: [data.len()], data }));
    serialize_to_file(views, None, path).map_err(|error| error.to_string())?;
    // Some systems sync only what may be written.
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| error.to_string())?;
    file.sync_all().map_err(|error| error.to_string())?;
    seal_of(file).map_err(|error| error.to_string())
}

struct Flat<'a> {
    shape: [usize; 1],
    data: &'a [f32],
}

impl View for Flat<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.data.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn data_len(&self) -> usize {
        4 * self.data.len()
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

/// The bytes of a file that is as its seal says.
pub fn read_sealed(dir: &Path, name: &str, manifest: &Manifest) -> Result<Vec<u8>, String> {
    let path = dir.join(name);
    let says = |what: &str| format!("{}: {what}", path.display());
    let seal = manifest.files.get(name).ok_or_else(|| says("the manifest does not know it"))?;
    let file = File::open(&path).map_err(|error| says(&error.to_string()))?;
    let length = file.metadata().map_err(|error| says(&error.to_string()))?.len();
    if length != seal.bytes {
        return Err(says(&format!("damaged ({length} bytes in place of {})", seal.bytes)));
    }
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes).map_err(|error| says(&error.to_string()))?;
    if crc32fast::hash(&bytes) != seal.crc32 {
        return Err(says("damaged (its checksum is wrong)"));
    }
    Ok(bytes)
}

pub fn read_params(dir: &Path, manifest: &Manifest) -> Result<Vec<f32>, String> {
    let bytes = read_sealed(dir, WEIGHTS, manifest)?;
    let says = |what: String| format!("{}: {what}", dir.join(WEIGHTS).display());
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| says(error.to_string()))?;
    let params = vector(&tensors, PARAMS).map_err(says)?;
    if params.len() as u64 != manifest.params {
        let (has, wants) = (params.len(), manifest.params);
        return Err(says(format!("{has} parameters in place of {wants}")));
    }
    Ok(params)
}

/// The vector of that name.
pub fn vector(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>, String> {
    let tensor = tensors.tensor(name).map_err(|error| format!("tensor {name}: {error}"))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("tensor {name}: it is not of 32-bit floats"));
    }
    let four = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("chunks are of four"));
    Ok(tensor.data().chunks_exact(4).map(four).collect())
}
