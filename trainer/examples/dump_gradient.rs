//! Writes a model's parameters, one batch, and the loss and gradient on it into a folder of raw little-endian
//! files, for a comparison with another library:
//! `cargo run --release --example dump_gradient -- mlp|cnn|gpt FOLDER`.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use clap::ValueEnum;
use gradwire_trainer::data::{Batch, Batches, optdigits, shakespeare};
use gradwire_trainer::model::ModelKind;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = arguments.as_slice() else { return Err("expected: mlp|cnn|gpt FOLDER".into()) };
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)?;
    let dataset = if name == "gpt" { shakespeare::load()? } else { optdigits::load()? };
    let config = ModelKind::from_str(name, false)?.suited_to(&dataset.task());
    let mut model = config.build(&dataset.task(), 1)?;
    let batch = Batches::new(&dataset, 1, 16, 0, 1, config.context())?.batch(0, 0);
    let (mut params, mut grad) = (vec![0.0; model.len()], vec![0.0; model.len()]);
    model.params(&mut params);
    let loss = model.forward_backward(&batch, &mut grad)?;

    let mut table = format!("loss {loss}\n");
    for (name, shape) in model.layout() {
        writeln!(table, "{name} {}", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" "))?;
    }
    std::fs::write(folder.join("layout.txt"), table)?;
    write_floats(&folder.join("params.f32"), &params)?;
    write_floats(&folder.join("grad.f32"), &grad)?;
    match &batch {
        Batch::Images { features, .. } => write_floats(&folder.join("features.f32"), features)?,
        Batch::Tokens { inputs, .. } => write_numbers(&folder.join("inputs.u32"), inputs)?,
    }
    write_numbers(&folder.join("targets.u32"), batch.targets())?;
    Ok(())
}

fn write_floats(path: &Path, values: &[f32]) -> std::io::Result<()> {
    std::fs::write(path, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

fn write_numbers(path: &Path, values: &[u32]) -> std::io::Result<()> {
    std::fs::write(path, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}
