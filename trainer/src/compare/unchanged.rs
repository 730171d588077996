//! Whether the runs in a folder are those of its `grid.toml`.

use std::path::Path;

use super::{Plan, grid, kept};
use crate::config::{ConfigError, RunConfig};
use crate::terminal::program;

impl Plan {
    /// Refuses a folder with runs of other settings than these, which would be overwritten: somebody changed
    /// `grid.toml` after they began. Codecs and seeds may be added.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Conflict`], with the run and what differs; and if a `config.toml` cannot be read.
    pub fn ensure_same_runs(&self, folder: &Path) -> Result<(), ConfigError> {
        for (row, job) in self.rows.iter().flat_map(|row| row.jobs.iter().map(move |job| (row, job))) {
            let Some(config) = kept::config(job, &folder.join(row.folder_of(job)))? else { continue };
            let was_extended = || self.grid.longer_than.contains(&grid::length_text(&config));
            if config == job.config || config.begins(&job.config) && was_extended() {
                continue;
            }
            if let Some(other) = other_data(&config, &job.config) {
                return Err(ConfigError::Conflict(format!(
                    "{other} {} in {} was trained on; put those back, or compare into another folder: {} compare --grid {} --out DIR",
                    row.name_of(job),
                    folder.display(),
                    program(),
                    folder.join(grid::FILE).display()
                )));
            }
            let (place, differ) = (folder.display(), job.config.differences(&config)?);
            let way = match (config.begins(&job.config), job.steps_of(&config) < job.steps) {
                (true, true) => format!(
                    "; to train longer: {} compare --resume {place} --{}",
                    program(),
                    grid::length_text(&job.config).replace(" = ", " ")
                ),
                _ => String::new(),
            };
            return Err(ConfigError::Conflict(format!(
                "{}: changed since {} was trained: {differ}; a comparison keeps its runs: undo it{way}; or compare into another folder: {} compare --grid FILE --out DIR",
                folder.join(grid::FILE).display(),
                row.name_of(job),
                program()
            )));
        }
        Ok(())
    }
}

/// Names the data if they changed in the place where they were: nobody edited a setting then.
fn other_data(then: &RunConfig, now: &RunConfig) -> Option<String> {
    let is_same_place = then.data == now.data && then.data_dir == now.data_dir;
    let (known, found) = (then.data_crc32.as_deref()?, now.data_crc32.as_deref()?);
    let place = now.data_dir.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
    (is_same_place && known != found)
        .then(|| format!("data_dir = {place}: other data (CRC-32 {found}) than those (CRC-32 {known}) that"))
}
