//! What is known about the library's own all-reduce.

use std::ffi::CStr;
use std::fmt;

use super::library::Library;

/// The library's own all-reduce, as far as the library tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeAllReduce {
    /// Name and version of the library.
    pub library: String,
    /// The algorithm that its settings demand; `None` when it chooses by length and number of ranks, or does
    /// not tell.
    pub algorithm: Option<String>,
}

impl NativeAllReduce {
    /// Asks the running library through its tools interface. So the result is what the library uses, not what
    /// the environment or a settings file asks for.
    pub(super) fn of_running_library() -> Self {
        let version = mpi::environment::library_version().unwrap_or_default();
        Self { library: short(&version), algorithm: open_mpi_algorithm().or_else(mpich_algorithm) }
    }
}

impl fmt::Display for NativeAllReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.algorithm {
            Some(algorithm) => write!(f, "{}, algorithm {algorithm}", self.library),
            None => write!(f, "{}, algorithm of its own choice", self.library),
        }
    }
}

/// Settings count only while the switch that enables them is on, and while their component is in use.
fn open_mpi_algorithm() -> Option<String> {
    let is_on = matches!(setting(c"coll_tuned_use_dynamic_rules")?.as_str(), "1" | "true" | "t");
    let components = setting(c"coll").unwrap_or_default();
    let is_in_use = components.is_empty()
        || components.starts_with('^') != components.split([',', '^']).any(|name| name == "tuned");
    let algorithm = setting(c"coll_tuned_allreduce_algorithm")?;
    (is_on && is_in_use && algorithm != "ignore").then_some(algorithm)
}

/// MPICH reports a number, whose meaning differs between versions; its name is in the variable that set it.
fn mpich_algorithm() -> Option<String> {
    let number = setting(c"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM").filter(|number| number != "0")?;
    Some(std::env::var("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM").unwrap_or(format!("number {number}")))
}

fn setting(name: &CStr) -> Option<String> {
    Library::setting(name)
}

/// `Open MPI v4.1.4, package: …` and `MPICH Version: 4.0.2\n…` without what follows the version.
fn short(version: &str) -> String {
    let end = version.find([',', '\n', '\0']).unwrap_or(version.len());
    version[..end].replace("Version:", "").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_in_few_words() {
        assert_eq!(short("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\0\0"), "Open MPI v4.1.4");
        assert_eq!(short("MPICH Version:      4.0.2\nMPICH Release date: x"), "MPICH 4.0.2");
    }
}
