//! Flat gradients in safetensors files: tensors in the order of their data, as f32.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use gradwire::half::{bf16, f16};
use gradwire::{Layout, LayoutRef, Source, StepKey};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use super::error::{CliError, FileFault};
use super::files::{self, check_length, open};

/// Longest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes of the header's length in front of the header.
const LENGTH_BYTES: u64 = 8;

/// Bytes of a tensor that are in memory besides the gradient while it is read; a multiple of every element's
/// size.
const CHUNK_BYTES: usize = 1 << 20;

/// The gradient of one file.
#[derive(Clone, Debug)]
pub(crate) struct Gradient {
    /// The file.
    pub(super) file: PathBuf,
    /// Its tensors, in the order of their data.
    pub(super) layout: Layout,
    /// One value a coordinate. F16 and BF16 are widened, which is exact.
    pub(super) values: Vec<f32>,
}

impl Gradient {
    /// Reads a gradient. Memory is allocated only when the header and the length of the file agree.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let read = || -> Result<Self, FileFault> {
            let (mut file, header) = open_safetensors(path)?;
            let values = header.read_values(&mut file)?;
            Ok(Self { file: path.to_path_buf(), layout: header.layout, values })
        };
        read().map_err(|fault| fault.of(path))
    }

    /// A gradient of `len` random values. Signs are drawn at random; magnitudes are those of an exponential
    /// distribution to the power of 1.5, which has the heavy tail of real ones. Its tensors are square
    /// matrices of 1024 × 1024. The remaining values form rows of 64, and those that fill no row form a
    /// vector.
    ///
    /// # Errors
    /// [`FileFault::OutOfMemory`] and [`FileFault::Empty`], of a file by the name of `--params`.
    pub(crate) fn drawn(len: usize) -> Result<Self, CliError> {
        let name = PathBuf::from("--params");
        let made = || -> Result<Self, FileFault> {
            let mut values = reserved(len)?;
            let stream = StepKey { seed: 0, step: 0, source: Source::Shared }.stream(0);
            values.extend((0..len as u64).map(|at| drawn_value(stream.u64_at(at))));
            Ok(Self { file: name.clone(), layout: squares(len)?, values })
        };
        made().map_err(|fault| fault.of(&name))
    }

    /// Reads a gradient that has elements: without any there is nothing to measure.
    pub(crate) fn read_filled(path: &Path) -> Result<Self, CliError> {
        let gradient = Self::read(path)?;
        if gradient.values.is_empty() { Err(FileFault::Empty.of(path)) } else { Ok(gradient) }
    }

    /// One value a coordinate.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Names the file of this gradient as the one with a fault.
    pub(super) fn fault(&self, fault: impl Into<FileFault>) -> CliError {
        fault.into().of(&self.file)
    }

    /// The tensor that holds a coordinate, and the element of it.
    pub(super) fn place(&self, coordinate: usize) -> Option<(String, usize)> {
        place(&self.layout, coordinate)
    }
}

/// The tensor of a layout that holds a coordinate, and the element of it.
pub(super) fn place(layout: &Layout, coordinate: usize) -> Option<(String, usize)> {
    let tensor = layout.tensors().iter().rfind(|tensor| tensor.offset <= coordinate)?;
    Some((tensor.name.clone(), coordinate - tensor.offset))
}

/// A sign and a magnitude, made of 64 random bits.
fn drawn_value(bits: u64) -> f32 {
    let uniform = ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let magnitude = libm::pow(-libm::log(uniform), 1.5) * 1e-3;
    if bits & 1 == 0 { magnitude as f32 } else { -magnitude as f32 }
}

/// Matrices of `SIDE` × `SIDE`, and tensors of the remaining values.
fn squares(len: usize) -> Result<Layout, FileFault> {
    const SIDE: usize = 1024;
    const ROW: usize = 64;
    let (whole, left) = (len / (SIDE * SIDE), len % (SIDE * SIDE));
    let matrices = (0..whole).map(|_| vec![SIDE, SIDE]);
    let rest = [vec![left / ROW, ROW], vec![left % ROW]];
    let shapes = matrices.chain(rest).filter(|shape| shape.iter().product::<usize>() > 0);
    let named = shapes.enumerate().map(|(number, shape)| (format!("tensor.{number}"), shape));
    let layout = Layout::packed(named).map_err(|error| FileFault::NotSafetensors(error.to_string()))?;
    if layout.is_empty() { Err(FileFault::Empty) } else { Ok(layout) }
}

/// Reads the layout of a gradient file without its values.
pub(super) fn read_layout(path: &Path) -> Result<Layout, CliError> {
    open_safetensors(path).map(|(_, header)| header.layout).map_err(|fault| fault.of(path))
}

/// The header of a safetensors file, checked against the length of the file.
struct Contents {
    layout: Layout,
    dtypes: Vec<Dtype>,
}

/// Opens a file and reads its header; the file is then at the first byte of its data.
fn open_safetensors(path: &Path) -> Result<(File, Contents), FileFault> {
    read_header(path).map_err(|fault| match (fault, files::kind(path)) {
        (FileFault::NotSafetensors(_), Some(kind)) if !kind.is_safetensors() => {
            FileFault::NotSafetensors(format!("this is {kind}"))
        }
        (fault, _) => fault,
    })
}

fn read_header(path: &Path) -> Result<(File, Contents), FileFault> {
    let (mut file, actual) = open(path)?;
    if actual < LENGTH_BYTES {
        return Err(FileFault::NotSafetensors(format!("it has {actual} bytes")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES.min(actual - LENGTH_BYTES) {
        let reason = format!("its header would have {header_bytes} bytes, the file has {actual}");
        return Err(FileFault::NotSafetensors(reason));
    }
    let mut header = Vec::new();
    (&mut file).take(header_bytes).read_to_end(&mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|error| FileFault::NotSafetensors(format!("bad header: {error}")))?;
    check_length(LENGTH_BYTES + header_bytes + metadata.data_len() as u64, actual)?;
    Ok((file, Contents::new(&metadata)?))
}

impl Contents {
    fn new(metadata: &Metadata) -> Result<Self, FileFault> {
        let tensors = metadata.tensors();
        // Tensors without elements share an offset: the name decides, so that the layout is the same every
        // time.
        let mut tensors: Vec<(&String, &&TensorInfo)> = tensors.iter().collect();
        tensors.sort_by_key(|(name, info)| (info.data_offsets, *name));
        if let Some((tensor, info)) = tensors.iter().find(|(_, info)| element_bytes(info.dtype).is_none()) {
            return Err(FileFault::Dtype { tensor: tensor.to_string(), dtype: info.dtype });
        }
        let shapes = tensors.iter().map(|(name, info)| (name.as_str(), info.shape.clone()));
        let layout = Layout::packed(shapes).map_err(|error| FileFault::NotSafetensors(error.to_string()))?;
        let dtypes = tensors.iter().map(|(_, info)| info.dtype).collect();
        Ok(Self { layout, dtypes })
    }

    fn read_values(&self, file: &mut File) -> Result<Vec<f32>, FileFault> {
        let mut values = reserved(self.layout.len())?;
        let mut chunk = vec![0; CHUNK_BYTES];
        for (tensor, &dtype) in self.layout.tensors().iter().zip(&self.dtypes) {
            let elements = tensor.as_ref().checked_len().unwrap_or(0);
            let mut left = elements * element_bytes(dtype).unwrap_or(0);
            while left > 0 {
                let bytes = &mut chunk[..left.min(CHUNK_BYTES)];
                file.read_exact(bytes)?;
                widen(dtype, bytes, &mut values);
                left -= bytes.len();
            }
        }
        Ok(values)
    }
}

/// Bytes of one element of the types that gradients have.
fn element_bytes(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        _ => None,
    }
}

fn widen(dtype: Dtype, bytes: &[u8], values: &mut Vec<f32>) {
    let (words, _) = bytes.as_chunks();
    let (halves, _) = bytes.as_chunks();
    match dtype {
        Dtype::F16 => values.extend(halves.iter().map(|&half| f16::from_le_bytes(half).to_f32())),
        Dtype::BF16 => values.extend(halves.iter().map(|&half| bf16::from_le_bytes(half).to_f32())),
        _ => values.extend(words.iter().map(|&word| f32::from_le_bytes(word))),
    }
}

/// Memory for `len` values, or an error if there is not enough.
fn reserved(len: usize) -> Result<Vec<f32>, FileFault> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| FileFault::OutOfMemory { elements: len })?;
    Ok(values)
}

/// `len` zeros, or an error if there is not enough memory.
pub(super) fn zeroed(len: usize) -> Result<Vec<f32>, FileFault> {
    let mut values = reserved(len)?;
    values.resize(len, 0.0);
    Ok(values)
}

/// Writes a flat gradient as F32 tensors of `layout`, in its order, so that the file has the same layout
/// again. `notes` become the metadata of the file. The same content gives the same bytes.
pub(super) fn write(
    path: &Path,
    layout: &LayoutRef<'_>,
    values: &[f32],
    notes: &BTreeMap<&str, String>,
) -> Result<(), CliError> {
    let header = header_text(layout, notes);
    files::write(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))
    })
}

/// The header, padded with spaces so that the data begin at a multiple of eight bytes.
fn header_text(layout: &LayoutRef<'_>, notes: &BTreeMap<&str, String>) -> String {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!(notes));
    for tensor in layout.tensors() {
        let bytes = [tensor.offset, tensor.offset + tensor.checked_len().unwrap_or(0)].map(|end| end * 4);
        let entry: Value = json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": bytes });
        header.insert(tensor.name.to_owned(), entry);
    }
    let mut text = Value::Object(header).to_string();
    // Not by the width of a format, which has 16 bits.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_with_the_same_layout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gradient.safetensors");
        let shapes = [("z", vec![2, 2]), ("a", vec![]), ("empty", vec![0]), ("m", vec![3])];
        let layout = Layout::packed(shapes).unwrap();
        let values = [1.0, -0.0, f32::MIN_POSITIVE / 2.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        write(&path, &layout.as_ref(), &values, &BTreeMap::from([("step", "0".to_owned())])).unwrap();
        let gradient = Gradient::read(&path).unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&gradient.values), bits(&values));
        assert_eq!(gradient.layout, layout);
        assert_eq!(gradient.place(4), Some(("a".to_owned(), 0)));
        assert_eq!(gradient.place(6), Some(("m".to_owned(), 1)));
    }

    #[test]
    fn a_drawn_gradient_has_the_length_that_was_asked_for() {
        for (len, tensors) in [(1, 1), (64, 1), (1000, 2), ((1 << 20) + 65, 3), (2 << 20, 2)] {
            let gradient = Gradient::drawn(len).unwrap();
            assert_eq!((gradient.values().len(), gradient.layout.len()), (len, len));
            assert_eq!(gradient.layout.tensors().len(), tensors, "{len}");
        }
        let values = Gradient::drawn(1 << 16).unwrap().values;
        let mean = values.iter().map(|&value| f64::from(value.abs())).sum::<f64>() / values.len() as f64;
        // The mean of an exponential variable to the power of 1.5 is Γ(2.5).
        assert!((mean / 1.3293e-3 - 1.0).abs() < 0.03, "{mean}");
        assert!(matches!(Gradient::drawn(0), Err(CliError::File { fault: FileFault::Empty, .. })));
    }

    #[test]
    fn more_than_there_is_memory_for_is_an_error() {
        let fault = zeroed(usize::MAX).unwrap_err();
        assert!(matches!(fault, FileFault::OutOfMemory { elements: usize::MAX }));
    }
}
