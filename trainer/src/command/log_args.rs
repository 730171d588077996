//! How a run is watched: by its events, and by Prometheus.

#[cfg(feature = "metrics")]
use std::net::SocketAddr;

use super::failure::Failure;
use crate::log::{self, Format};
#[cfg(feature = "metrics")]
use crate::process::launch::Launch;
#[cfg(feature = "metrics")]
use crate::record::monitor;

/// How a run is watched. Belongs to the process, not to the run.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct LogArgs {
    /// How progress and events are written to standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: Format,
    /// Answer Prometheus at this address, such as 127.0.0.1:9400, with numbers about the run. Nothing
    /// authenticates whoever asks. With port 0 the system chooses one
    #[cfg(feature = "metrics")]
    #[arg(long, value_name = "HOST:PORT")]
    metrics_listen: Option<SocketAddr>,
}

impl LogArgs {
    /// From now on events are written, and numbers are shown if that is wanted. Of several processes, the
    /// first one shows them.
    pub(crate) fn start(self) -> Result<(), Failure> {
        log::start(self.log_format);
        #[cfg(feature = "metrics")]
        if let Some(address) = self.metrics_listen
            && Launch::detect()?.is_none_or(|launch| launch.rank == 0)
        {
            let failed = |error| Failure::Usage(format!("--metrics-listen {address}: {error}"));
            monitor::listen(address).map_err(failed)?;
        }
        Ok(())
    }
}
