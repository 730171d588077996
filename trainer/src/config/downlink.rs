//! The setting `downlink`: how a server sends its mean back.

use gradwire::{Codec, Spec};

use super::check::refuse;
use super::{ConfigError, ExchangeKind, RunConfig};

/// The codec of means that is spelled so.
pub(crate) fn read(spelling: &str) -> Result<Spec, ConfigError> {
    let refused = |what: String| ConfigError::Codec { spelling: spelling.to_owned(), what };
    let spec = Spec::parse(spelling).map_err(|error| refused(error.to_string()))?;
    match (spec.codec, spec.packets) {
        (Codec::Gather(_), None) => Ok(spec),
        (Codec::Gather(_), Some(_)) => {
            Err(refused("a mean goes back as one frame, not as packets".to_owned()))
        }
        _ => Err(refused("a mean goes back as a frame, and this codec makes none".to_owned())),
    }
}

/// Only a server sends means.
pub(super) fn downlink_conflicts(config: &RunConfig) -> Result<(), ConfigError> {
    let has_server = config.exchange == ExchangeKind::Server || config.codec.spec.packets.is_some();
    refuse(
        config.downlink.is_some() && !has_server,
        format!(
            "downlink with exchange = {}: only a server sends its mean back; use server",
            config.exchange
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn told(codec: &str, exchange: Option<ExchangeKind>, downlink: &str) -> Result<String, String> {
        let (codec, downlink) = (Some(codec.to_owned()), Some(downlink.to_owned()));
        let config = RunConfig::resolve(&Settings { codec, exchange, downlink, ..Settings::default() });
        let config = config.map_err(|error| error.to_string())?;
        Ok(config.to_toml().unwrap())
    }

    #[test]
    fn a_server_has_a_codec_of_its_own() {
        let settings = told("topk", Some(ExchangeKind::Server), "bf16:memory=ef").unwrap();
        assert!(settings.contains("downlink = \"bf16:memory=ef\"\n"), "{settings}");
        assert!(told("topk:max_packet_bytes=512", None, "f16").is_ok());
    }

    #[test]
    fn what_no_server_can_send_back_is_refused() {
        let server = Some(ExchangeKind::Server);
        let cases = [
            (told("topk", None, "bf16"), "downlink with exchange = auto: only a server"),
            (told("topk", Some(ExchangeKind::Sparse), "bf16"), "downlink with exchange = sparse"),
            (told("topk", server, "topk:max_packet_bytes=512"), "not as packets"),
            (told("topk", server, "powersgd:rank=2"), "this codec makes none"),
            (told("topk", server, "dpsgd"), "this codec makes none"),
            (told("topk", server, "nothing"), "codec = nothing: "),
        ];
        for (said, expected) in cases {
            assert!(said.as_ref().is_err_and(|said| said.contains(expected)), "{said:?} has no {expected:?}");
        }
    }
}
