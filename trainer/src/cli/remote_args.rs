//! `trainer serve` and `trainer join`: their own options, and the settings of the run.

use std::path::{Path, PathBuf};

use super::settings::settings;
use crate::codec_cli::codecs_help;
use crate::command::LogArgs;
use crate::config::Settings;
use crate::job::JobError;

#[derive(Debug, clap::Args)]
#[command(after_help = codecs_help())]
pub(super) struct RemoteArgs<Own: clap::Args> {
    #[command(flatten)]
    pub(super) own: Own,
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Codec with its settings, such as none, topk:density=0.01, qsgd:bits=4 [default: topk:density=0.01]
    #[arg(long, value_name = "SPEC")]
    codec: Option<String>,
    /// Rules in place of a codec: for each tensor the codec of the first pattern that fits its name, such as
    /// '*.bias=none; embed.*=topk:density=0.001; topk:density=0.01'. Or a file with them
    #[arg(long, value_name = "RULES", conflicts_with = "codec")]
    rules: Option<String>,
    /// TOML file with settings. Its keys are codec, rules and the options of the groups below, with _ for -.
    /// An option on the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

impl<Own: clap::Args> RemoteArgs<Own> {
    pub(super) fn settings(&self) -> Result<Settings, JobError> {
        let own = Settings { codec: self.codec.clone(), rules: self.rules.clone(), ..self.settings.clone() };
        settings(&own, self.config.as_ref())
    }

    /// The file with settings.
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }
}
