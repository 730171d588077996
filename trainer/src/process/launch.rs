//! Whether a launcher such as `mpirun` has started this process, and as which of how many.

use std::thread;
use std::time::Duration;

/// Variables that hold rank and number of processes: those of Open MPI, and those of the process management
/// interface that MPICH's launchers and Slurm use.
const VARIABLES: [(&str, &str); 2] =
    [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];
/// Long enough for the first process to say something and for the launcher to end the others.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// One of several processes of the same command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which one, from 0.
    pub rank: usize,
    /// Number of processes.
    pub world: usize,
}

impl Launch {
    /// The launcher's settings in the environment, if there is a launcher.
    pub fn detect() -> Option<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(value: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| value(name)?.parse().ok();
        let launch = |(rank, world)| Some(Self { rank: number(rank)?, world: number(world)? });
        VARIABLES.into_iter().find_map(launch).filter(|launch| launch.rank < launch.world)
    }

    /// Gives the first process time to print the message that all of them would print, so that it is printed
    /// once: when it fails, the launcher ends the others.
    pub fn let_first_speak(self) {
        if self.rank > 0 {
            thread::sleep(FIRST_WORD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Option<Launch> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Launch::from_variables(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn both_kinds_of_launchers_are_recognised() {
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(detect(&open_mpi), Some(Launch { rank: 2, world: 4 }));
        assert_eq!(detect(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), Some(Launch { rank: 0, world: 1 }));
    }

    #[test]
    fn what_is_incomplete_or_senseless_is_no_launch() {
        assert_eq!(detect(&[]), None);
        assert_eq!(detect(&[("PMI_RANK", "0")]), None);
        assert_eq!(detect(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]), None);
        assert_eq!(detect(&[("PMI_RANK", "one"), ("PMI_SIZE", "4")]), None);
    }
}
