//! Gradients of real models, in the folder that `GRADWIRE_DATA` names; tests that use them say so when there
//! are none.

use gradwire::Layout;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One gradient.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// Folder and file, without the ending.
    pub name: String,
    /// Its tensors, in the order of their data.
    pub layout: Layout,
    /// One value a coordinate.
    pub values: Vec<f32>,
}

/// What kind of gradient a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// Gradients as they come out of the backward pass.
    Raw,
    /// Accumulators of plain error feedback.
    ErrorFeedback,
    /// Accumulated velocities of Deep Gradient Compression.
    Dgc,
}

impl Gradient {
    /// Told by the name of the file.
    #[must_use]
    pub fn regime(&self) -> Regime {
        match &self.name {
            name if name.contains("dgcv") => Regime::Dgc,
            name if name.contains("efv") => Regime::ErrorFeedback,
            _ => Regime::Raw,
        }
    }

    /// # Panics
    /// When the file is not a gradient in f32.
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file =
            SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut tensors = file.tensors();
        // Views into one buffer: by address is by offset.
        tensors.sort_by_key(|(name, tensor)| (tensor.data().as_ptr(), tensor.data().len(), name.clone()));
        assert!(
            tensors.iter().all(|(_, tensor)| tensor.dtype() == Dtype::F32),
            "{}: not f32",
            path.display()
        );
        let shapes = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.shape().to_vec()));
        let layout = Layout::packed(shapes).expect("the tensors fit the address space");
        let words = tensors.iter().flat_map(|(_, tensor)| tensor.data().as_chunks().0);
        let values = words.map(|&word| f32::from_le_bytes(word)).collect();
        let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Self { name: format!("{folder}/{stem}"), layout, values }
    }
}

/// The folder that `GRADWIRE_DATA` names; none, and a line that says that `what` was skipped, where the
/// variable is not set.
#[must_use]
pub fn folder(what: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("GRADWIRE_DATA").filter(|path| !path.is_empty()).map(PathBuf::from);
    if folder.is_none() {
        eprintln!("SKIPPED {what} on real gradients: GRADWIRE_DATA is not set");
    }
    folder
}

/// Every gradient of the [`folder`], by name, one at a time; none where `test` is skipped.
///
/// # Panics
/// When there is a folder and no gradient below its `gradients`.
pub fn all(test: &str) -> impl Iterator<Item = Gradient> {
    folder(test).into_iter().flat_map(|folder| below(&folder))
}

/// Every gradient below `gradients` in the folder, by name, one at a time.
///
/// # Panics
/// When there are none.
pub fn below(folder: &Path) -> impl Iterator<Item = Gradient> + use<> {
    let mut files = files_of(&folder.join("gradients"));
    assert!(!files.is_empty(), "GRADWIRE_DATA has no gradients in it");
    files.sort();
    files.into_iter().map(|file| Gradient::read(&file))
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let models = entries(folder);
    let files = models.flat_map(|model| entries(&model).collect::<Vec<_>>());
    files.filter(|file| file.extension().is_some_and(|ending| ending == "safetensors")).collect()
}

/// Gradients of one model at (nearly) the same parameters, by the name of the group: as many as there are
/// workers.
#[must_use]
pub fn groups(what: &str) -> BTreeMap<String, Vec<Vec<f32>>> {
    let mut groups: BTreeMap<String, Vec<Vec<f32>>> = BTreeMap::new();
    for gradient in all(what) {
        let name = match &gradient.name {
            name if name.contains("-seq-") => "resnet8, 16 mini-batches of neighbouring steps".to_owned(),
            name => name.rsplit_once("-w").map_or(name.as_str(), |(name, _)| name).to_owned(),
        };
        let of_name = groups.entry(name).or_default();
        if of_name.len() < 16 {
            of_name.push(gradient.values);
        }
    }
    groups.retain(|_, gradients| gradients.len() >= 4);
    groups
}
