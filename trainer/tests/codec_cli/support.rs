//! Files and commands that the tests share.

use std::path::PathBuf;
use std::process::{Command, Output};

use gradwire::registry::CODECS;
use gradwire::{Codec, Decoder, Layout, LayoutRef, Limits, Spec};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Coders and cuts into units that no example has.
const SPELLINGS: [&str; 21] = [
    "f16:memory=ef",
    "topk:density=0.1,index=raw",
    "topk:density=0.1,index=bitmap",
    "topk:density=0.1,index=rice",
    "topk:density=0.1,values=f16",
    "topk:density=0.1,values=bf16",
    "topk:density=0.1,values=q8",
    "topk:density=0.1,values=q4",
    "topk:density=0.1,values=q2",
    "topk:density=0.1,memory=none,unit=tensor",
    "topk:density=0.01,unit=tensor,dense_below=50",
    "topk:density=0.01,dense_1d=true",
    "threshold:value=0.5",
    "threshold:value=1000000",
    "qsgd:bits=8,bucket=128,norm=l2",
    "qsgd:bits=ternary,entropy=fixed",
    "qsgd:bits=2,entropy=elias",
    "qsgd:bits=3,entropy=rans,unit=tensor",
    "qsgd:bits=4,entropy=adaptive",
    "randomk:density=0.1,estimator=unbiased",
    "randomk:density=0.1,unit=tensor,dense_1d=true",
];

/// These, and all examples of all codecs that make frames of a gradient.
pub(crate) fn spellings() -> Vec<&'static str> {
    let examples = examples().filter(|example| makes_frames(example) && !SPELLINGS.contains(example));
    SPELLINGS.into_iter().chain(examples).collect()
}

/// The examples of all codecs.
pub(crate) fn examples() -> impl Iterator<Item = &'static str> {
    CODECS.iter().flat_map(|entry| entry.examples).copied()
}

/// Whether the codec makes frames of a gradient. A gossip codec sends models.
pub(crate) fn makes_frames(spelling: &str) -> bool {
    let codec = Spec::parse(spelling).unwrap().codec;
    codec.capabilities().has_frames && !matches!(codec, Codec::Gossip(_))
}

/// Names are not in alphabetical order on purpose: the order of the data is what counts.
pub(crate) const SHAPES: [(&str, &[usize]); 5] =
    [("w1", &[40, 50]), ("b1", &[40]), ("temperature", &[]), ("a", &[10, 40]), ("empty", &[0, 3])];

pub(crate) fn trainer(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer")).arg("codec").args(args).output().unwrap()
}

/// Standard output of a command that succeeds in silence.
pub(crate) fn run(args: &[&str]) -> String {
    let output = trainer(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard output and the one line of standard error of a command that is refused.
pub(crate) fn refused(args: &[&str]) -> (String, String) {
    let output = trainer(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr.trim_end().to_owned())
}

pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Heavy-tailed values, the same every time.
pub(crate) fn values(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let uniform = (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
        16.0 * uniform * uniform * uniform
    };
    (0..n).map(|_| next()).collect()
}

pub(crate) fn layout() -> Layout {
    Layout::packed(SHAPES.map(|(name, shape)| (name, shape.to_vec()))).unwrap()
}

/// The bytes of a safetensors file with one tensor behind the other.
pub(crate) fn safetensors_bytes(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

pub(crate) fn le_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A folder with a gradient, and paths in it as arguments.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) values: Vec<f32>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap(), values: values(layout().len()) };
        bench.write("gradient.safetensors", &bench.gradient(&bench.values));
        bench
    }

    /// A gradient of [`layout`] as a file.
    pub(crate) fn gradient(&self, values: &[f32]) -> Vec<u8> {
        let layout = layout();
        let tensors: Vec<_> = layout
            .tensors()
            .iter()
            .map(|tensor| {
                let end = tensor.offset + tensor.as_ref().checked_len().unwrap();
                (tensor.name.as_str(), "F32", &tensor.shape[..], le_bytes(&values[tensor.offset..end]))
            })
            .collect();
        safetensors_bytes(&tensors)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Encodes the gradient; returns the frame.
    pub(crate) fn encode(&self, codec: &str, seed: u64) -> Vec<u8> {
        let (input, output) = (self.path("gradient.safetensors"), self.path("frame"));
        let seed = seed.to_string();
        run(&[
            "encode", "--codec", codec, "--input", &input, "--force", "--output", &output, "--seed", &seed,
        ]);
        self.read("frame")
    }

    /// Names and contents of all files.
    pub(crate) fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = self.folder.path().read_dir().unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    }
}

/// What a frame adds to an accumulator of zeros.
pub(crate) fn decoded(frame: &[u8], layout: &LayoutRef<'_>) -> Vec<u32> {
    let mut decoder = Decoder::new();
    let frame = decoder.parse(frame, layout, &Limits::for_layout(layout)).unwrap();
    let mut sum = vec![0.0; layout.len()];
    frame.add_scaled_to(1.0, &mut sum);
    sum.into_iter().map(f32::to_bits).collect()
}

/// The tensors of a file in the order of their data: name, shape, bits.
pub(crate) fn tensors(file: &[u8]) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    let file = SafeTensors::deserialize(file).unwrap();
    let mut tensors = file.tensors();
    tensors.sort_by_key(|(name, tensor)| (tensor.data().as_ptr() as usize, name.clone()));
    let read = |(name, tensor): (String, TensorView<'_>)| {
        assert_eq!(tensor.dtype(), Dtype::F32);
        let (words, _) = tensor.data().as_chunks();
        (name, tensor.shape().to_vec(), words.iter().map(|&word| u32::from_le_bytes(word)).collect())
    };
    tensors.into_iter().map(read).collect()
}
