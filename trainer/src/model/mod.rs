//! Models behind one trait: parameters in one flat slice, gradients in another.
//!
//! | module | model | for |
//! | --- | --- | --- |
//! | [`mlp`] | fully connected layers | images |
//! | [`cnn`] | two convolutions with pooling, two fully connected layers | images |
//! | [`resnet`] | 20 layers of convolutions with shortcuts and batch normalisation | images |
//! | [`gpt`] | pre-norm transformer that predicts the next token | text |
//! | [`lstm`] | recurrent layers that read streams and predict the next token | text |
//!
//! [`eval`] measures a model, and [`hash`](mod@hash) makes one number of its parameters.
//!
//! The tensor library stays behind [`Model`]. A model keeps its parameters as a flat slice, makes tensors of
//! them at every step and reads every tensor's gradient back; a missing gradient is an error. [`lstm`] and
//! [`resnet`] write their backward pass out, and take only products of matrices from the library. State that
//! a model carries from step to step beside its parameters (statistics of normalisation, the state of streams
//! of text) goes into checkpoints by rank, and no codec sees it.

mod autodiff;
pub mod cnn;
mod config;
mod dropout;
mod error;
pub mod eval;
mod evaluating;
mod exponential;
pub mod gpt;
pub mod hash;
mod init;
pub mod lstm;
mod matrix;
pub mod mlp;
mod network;
mod parameters;
pub mod resnet;
mod softmax;
mod tiny;
mod weights;

pub use cnn::CnnConfig;
pub use config::{ModelConfig, ModelKind};
pub use error::ModelError;
pub use evaluating::Evaluating;
pub use gpt::GptConfig;
pub use lstm::LstmConfig;
pub use mlp::MlpConfig;
pub use network::{Model, Moment, Score};
pub use parameters::Parameters;
pub use resnet::ResNetConfig;
