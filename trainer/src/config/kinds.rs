//! Settings that are one word of a few.

use std::fmt;

use clap::ValueEnum;
use gradwire::Codec;
use gradwire::registry::GatherCodec;
use gradwire_transports::collective::Wire;
use gradwire_transports::gossip::Topology;
use serde::{Deserialize, Serialize};

/// The setting `exchange`: how the workers' gradients become one mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExchangeKind {
    /// What suits the codec and the link.
    Auto,
    /// Frames go from all to all.
    AllGather,
    /// Each worker sums the entries of a part, and sends them to all.
    Sparse,
    /// Sums around a ring.
    AllReduce,
    /// Sums along a tree.
    Tree,
    /// Each worker sums a part, and sends it to all.
    Owners,
    /// The all-reduce of an MPI library.
    Native,
    /// Through one worker.
    Server,
    /// Between neighbours, without a mean.
    Gossip,
}

impl ExchangeKind {
    /// Whether payloads are summed on the way.
    pub(super) fn is_summed(self) -> bool {
        matches!(self, Self::AllReduce | Self::Tree | Self::Owners | Self::Native)
    }
}

/// The setting `topology`: who is whose neighbour in gossip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyKind {
    /// Two neighbours.
    Ring,
    /// Four neighbours.
    Torus,
    /// All others.
    Complete,
    /// Those 1, 2, 4, … places away.
    Exponential,
}

impl From<TopologyKind> for Topology {
    fn from(kind: TopologyKind) -> Self {
        match kind {
            TopologyKind::Ring => Self::Ring,
            TopologyKind::Torus => Self::Torus,
            TopologyKind::Complete => Self::Complete,
            TopologyKind::Exponential => Self::Exponential,
        }
    }
}

/// The setting `wire`: how a sum on the way sends an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireKind {
    /// As it is.
    F32,
    /// In half the bytes.
    Bf16,
}

impl From<WireKind> for Wire {
    fn from(kind: WireKind) -> Self {
        match kind {
            WireKind::F32 => Self::F32,
            WireKind::Bf16 => Self::Bf16,
        }
    }
}

/// The setting `transport`: what carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// Threads of one process.
    Local,
    /// Processes that a launcher of MPI started.
    Mpi,
    /// Processes on several machines, over TCP.
    Tcp,
    /// A server and its workers, over ZeroMQ.
    Zmq,
}

/// The setting `optimizer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Stochastic gradient descent.
    Sgd,
    /// AdamW on the mean of all gradients.
    Adamw,
    /// AdamW at each worker, whose updates are compressed.
    AdamwUpdates,
    /// Muon for inner matrices, AdamW for all else, on the mean of all gradients.
    Muon,
}

impl OptimizerKind {
    /// Whether it trained worse on what the codec leaves of gradients, as docs/optimizers.md has measured:
    /// some coordinates, factors or signs.
    pub(crate) fn trains_worse_with(self, codec: &Codec) -> bool {
        let is_sparse = codec.density().is_some() || codec.sparse_values().is_some();
        let leaves_little =
            is_sparse || codec.rank().is_some() || matches!(codec, Codec::Gather(GatherCodec::EfSign(_)));
        leaves_little && matches!(self, Self::Adamw | Self::Muon)
    }
}

/// The setting `schedule`: the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Always the same.
    Constant,
    /// Down to 0 at the last step.
    Cosine,
    /// Drops every so many steps.
    Step,
}

/// Prints the words of an enum as files and the command line have them.
macro_rules! printed {
    ($($kind:ident)*) => { $(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )* };
}

printed! { ExchangeKind TopologyKind WireKind TransportKind OptimizerKind ScheduleKind }

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::config::Settings;
    use crate::data::Source;
    use crate::model::ModelKind;

    /// Every word of an enum is the same on the command line, in a file and in print.
    fn words<T>(key: &str) -> Vec<String>
    where
        T: ValueEnum + fmt::Display + fmt::Debug + PartialEq + Serialize + DeserializeOwned,
    {
        let word = |kind: &T| {
            let word = kind.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(kind.to_string(), word);
            assert_eq!(serde_json::to_value(kind).unwrap(), word.as_str());
            assert_eq!(&serde_json::from_value::<T>(word.as_str().into()).unwrap(), kind);
            assert_eq!(&T::from_str(&word, false).unwrap(), kind);
            let text = format!("{key} = \"{word}\"\n");
            assert_eq!(toml::to_string(&Settings::parse(&text).unwrap()).unwrap(), text);
            assert!(T::from_str(&word.to_uppercase(), false).is_err(), "{word}");
            word
        };
        T::value_variants().iter().map(word).collect()
    }

    #[test]
    fn every_word_is_spelled_as_in_the_files_of_earlier_versions() {
        let exchanges =
            ["auto", "all-gather", "sparse", "all-reduce", "tree", "owners", "native", "server", "gossip"];
        assert_eq!(words::<ExchangeKind>("exchange"), exchanges);
        assert_eq!(words::<TopologyKind>("topology"), ["ring", "torus", "complete", "exponential"]);
        assert_eq!(words::<WireKind>("wire"), ["f32", "bf16"]);
        assert_eq!(words::<TransportKind>("transport"), ["local", "mpi", "tcp", "zmq"]);
        assert_eq!(words::<OptimizerKind>("optimizer"), ["sgd", "adamw", "adamw-updates", "muon"]);
        assert_eq!(words::<ScheduleKind>("schedule"), ["constant", "cosine", "step"]);
        assert_eq!(words::<ModelKind>("model"), ["mlp", "cnn", "resnet20", "gpt", "lstm"]);
        let sources = [
            "optdigits",
            "tiny-shakespeare",
            "mnist",
            "fashion-mnist",
            "cifar-10",
            "ptb",
            "wikitext-2",
            "text",
            "characters",
        ];
        assert_eq!(words::<Source>("data"), sources);
    }

    #[test]
    fn a_word_that_is_not_known_is_refused_with_its_line_and_those_that_are() {
        for (key, word, near, known) in [
            ("exchange", "all-gathr", "; did you mean all-gather?", "auto, all-gather"),
            ("topology", "star", "", "ring, torus, complete, exponential"),
            ("wire", "bf61", "; did you mean bf16?", "f32, bf16"),
            ("wire", "BF16", "", "f32, bf16"),
            ("transport", "pigeon", "", "local, mpi, tcp, zmq"),
            ("optimizer", "adam", "; did you mean adamw?", "sgd, adamw, adamw-updates, muon"),
            ("schedule", "cosin", "; did you mean cosine?", "constant, cosine, step"),
            ("model", "rnn", "; did you mean cnn?", "mlp, cnn, resnet20, gpt, lstm"),
            ("data", "cifar10", "; did you mean cifar-10?", "optdigits, tiny-shakespeare"),
            ("data", "", "", "optdigits, tiny-shakespeare"),
        ] {
            let said = Settings::parse(&format!("seed = 1\n{key} = \"{word}\"\n")).unwrap_err();
            assert!(said.starts_with(&format!("line 2: {key} = {word}: expected one of {known}")), "{said}");
            assert_eq!(said.find(';').map_or("", |at| &said[at..]), near, "{said}");
        }
        let said = Settings::parse("wire = 3\n").unwrap_err();
        assert_eq!(said, "line 1: wire: expected a word in quotes");
    }
}
