//! Whether a launcher such as `mpirun` or `srun` has started this process, and as which of how many.

use std::fmt;
use std::thread;
use std::time::Duration;

/// How a launcher tells a process which one it is.
struct Launcher {
    name: &'static str,
    /// Variables with the rank and the number of processes.
    rank: &'static str,
    world: &'static str,
    /// Another variable that must be there: the names of the two may mean something else.
    also: &'static str,
}

const fn launcher(name: &'static str, rank: &'static str, world: &'static str) -> Launcher {
    Launcher { name, rank, world, also: rank }
}

/// Those of MPI first: a job of theirs may run inside a job of Slurm or Flux.
const LAUNCHERS: [Launcher; 7] = [
    launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    launcher("mpirun", "PMI_RANK", "PMI_SIZE"),
    launcher("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    launcher("flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    // SLURM_NTASKS is also there in a batch script, which is one process.
    launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    Launcher { name: "torchrun", rank: "RANK", world: "WORLD_SIZE", also: "MASTER_ADDR" },
];
/// A rank of which nothing says how many there are.
const RANK_ALONE: &str = "PMIX_RANK";
/// How the processes of a step of Slurm find one another, as `srun --mpi` was told.
#[cfg(feature = "mpi")]
const SLURM_MPI: &str = "SLURM_MPI_TYPE";
/// Long enough for the first process to say something and for the launcher to end the others.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// One of several processes of the same command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which one, from 0.
    pub rank: usize,
    /// Number of processes.
    pub world: usize,
    /// The launcher.
    pub by: &'static str,
}

/// A launcher that does not say how many processes it has started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "started by a PMIx launcher ({RANK_ALONE}={rank}) that does not say how many processes there are: start the \
     run with mpirun -n N, or with env -u {RANK_ALONE} if it is one process"
)]
pub struct UnknownWorld {
    rank: String,
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "started by {} as one of {} processes", self.by, self.world)
    }
}

impl Launch {
    /// The launcher's settings in the environment, if there is a launcher. Without MPI, one process alone has
    /// none: it does all by itself.
    ///
    /// # Errors
    ///
    /// There is a launcher, but the number of its processes is unknown.
    pub fn detect() -> Result<Option<Self>, UnknownWorld> {
        let launch = Self::from_variables(|name| std::env::var(name).ok())?;
        Ok(launch.filter(|launch| launch.world > 1 || cfg!(feature = "mpi")))
    }

    fn from_variables(value: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, UnknownWorld> {
        let number = |name: &str| value(name)?.parse().ok();
        let launch = |launcher: &Launcher| {
            let (rank, world) = (number(launcher.rank)?, number(launcher.world)?);
            value(launcher.also).map(|_| Self { rank, world, by: launcher.name })
        };
        match (LAUNCHERS.iter().find_map(launch), value(RANK_ALONE)) {
            (None, Some(rank)) => Err(UnknownWorld { rank }),
            // A scheduler starts single programs too. With a launcher of MPI it is a job of one process.
            (Some(launch), _) if launch.world == 1 && launch.by != "mpirun" => Ok(None),
            (found, _) => Ok(found.filter(|launch| launch.rank < launch.world)),
        }
    }

    /// The beginning of a command that starts as many processes.
    #[cfg(feature = "mpi")]
    pub(crate) fn words(self) -> Vec<String> {
        self.words_with(std::env::var(SLURM_MPI).ok())
    }

    #[cfg(any(feature = "mpi", test))]
    fn words_with(self, slurm_mpi: Option<String>) -> Vec<String> {
        let mpi = slurm_mpi.filter(|_| self.by == "srun").map(|kind| format!("--mpi={kind}"));
        let launcher = if matches!(self.by, "srun" | "jsrun" | "flux run") { self.by } else { "mpirun" };
        let count = ["-n".to_owned(), self.world.to_string()];
        launcher.split(' ').map(str::to_owned).chain(mpi).chain(count).collect()
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

    fn detect(variables: &[(&str, &str)]) -> Result<Option<Launch>, UnknownWorld> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Launch::from_variables(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn of(rank: usize, world: usize, by: &'static str) -> Result<Option<Launch>, UnknownWorld> {
        Ok(Some(Launch { rank, world, by }))
    }

    #[test]
    fn launchers_are_recognised() {
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(detect(&open_mpi), of(2, 4, "mpirun"));
        assert_eq!(detect(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), of(0, 1, "mpirun"));
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_NTASKS", "8")];
        assert_eq!(detect(&slurm), of(3, 8, "srun"));
        let both = [&slurm[..], &[("PMIX_RANK", "3")]].concat();
        assert_eq!(detect(&both), of(3, 8, "srun"), "srun --mpi=pmix");
        let within = [&slurm[..], &open_mpi].concat();
        assert_eq!(detect(&within), of(2, 4, "mpirun"), "mpirun in an allocation");
        assert_eq!(detect(&[("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2")]), of(1, 2, "flux run"));
        assert_eq!(detect(&[("JSM_NAMESPACE_RANK", "1"), ("JSM_NAMESPACE_SIZE", "2")]), of(1, 2, "jsrun"));
        let torch = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "host")];
        assert_eq!(detect(&torch), of(1, 2, "torchrun"));
    }

    #[test]
    fn as_many_processes_are_started_again_by_the_same_launcher() {
        let words = |by| Launch { rank: 0, world: 4, by }.words_with(Some("pmix".to_owned())).join(" ");
        assert_eq!(words("srun"), "srun --mpi=pmix -n 4");
        assert_eq!(words("flux run"), "flux run -n 4");
        assert_eq!([words("mpirun"), words("torchrun")], ["mpirun -n 4", "mpirun -n 4"]);
        assert_eq!(Launch { rank: 1, world: 2, by: "srun" }.words_with(None).join(" "), "srun -n 2");
    }

    #[test]
    fn a_rank_without_a_number_of_processes_is_named() {
        let error = detect(&[("PMIX_RANK", "2"), ("PMIX_NAMESPACE", "job")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("PMIX_RANK=2") && text.contains("mpirun -n N"), "{text}");
    }

    #[test]
    fn what_is_incomplete_or_senseless_or_alone_is_no_launch() {
        let none: [&[(&str, &str)]; 8] = [
            &[],
            &[("PMI_RANK", "0")],
            &[("PMI_RANK", "4"), ("PMI_SIZE", "4")],
            &[("PMI_RANK", "one"), ("PMI_SIZE", "4")],
            // A batch script.
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")],
            &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("PMIX_RANK", "0")],
            // Variables of anything.
            &[("RANK", "1"), ("WORLD_SIZE", "2")],
            &[("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "1")],
        ];
        for variables in none {
            assert_eq!(detect(variables), Ok(None), "{variables:?}");
        }
    }
}
