//! A pre-norm transformer that predicts the next token.
//!
//! ```text
//! x = embedding[token] + positions[place]
//! every block:  x += attention(norm(x));  x += down(gelu(up(norm(x))))
//! logits = norm(x) · head
//! ```
//!
//! # Source
//!
//! Radford et al., "Language models are unsupervised multitask learners", 2019 (GPT-2), without dropout and
//! with a head of its own instead of the transposed embedding.

use burn::tensor::activation::{gelu, softmax};
use burn::tensor::module::{embedding, layer_norm};
use burn::tensor::{Bool, Device, Tensor};

use super::ModelError;
use super::autodiff::{Network, indices};
use super::init::{Init, Spec};
use super::mlp::apply_linear;
use super::weights::Weights;
use crate::data::{Batch, Task};
use crate::range::{RangeError, require};

/// Keeps layer normalisation from dividing by zero.
pub const NORM_EPSILON: f64 = 1e-5;

/// Deviation of the initial weights, as GPT-2 has it.
const DEVIATION: f32 = 0.02;

/// Sizes of a transformer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GptConfig {
    /// Tokens that are seen at once.
    pub context: usize,
    /// Length of the vector of a token.
    pub width: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Blocks of attention and fully connected layers.
    pub layers: usize,
}

impl Default for GptConfig {
    /// 32 tokens of 64 values, 4 heads, 2 blocks: 110,464 parameters for the 65 characters of tiny
    /// Shakespeare.
    fn default() -> Self {
        Self { context: 32, width: 64, heads: 4, layers: 2 }
    }
}

/// Values of a head of wide blocks, as GPT-2 has them.
const HEAD: usize = 64;

impl GptConfig {
    /// The same with a block for each of these widths, which are equal. Wide blocks have more heads.
    pub(crate) fn with_blocks(&self, widths: &[usize]) -> Self {
        let width = widths.first().copied().unwrap_or(0);
        Self { width, heads: self.heads.max(width / HEAD), layers: widths.len(), ..self.clone() }
    }
}

/// The network.
pub(super) struct Gpt {
    config: GptConfig,
    vocabulary: usize,
}

impl Gpt {
    pub(super) fn new(config: &GptConfig, task: &Task) -> Result<Self, ModelError> {
        let Task::Tokens { vocabulary } = *task else {
            return Err(RangeError::new("model", "gpt", "mlp, cnn or resnet20, which read images").into());
        };
        let GptConfig { context, width, heads, layers } = *config;
        require((1..=4096).contains(&context), "context", context, "1 to 4096")?;
        require((1..=4096).contains(&width), "width", width, "1 to 4096")?;
        require((1..=128).contains(&layers), "layers", layers, "1 to 128")?;
        require(
            heads > 0 && width.is_multiple_of(heads),
            "heads",
            heads,
            format!("a divisor of the width {width}"),
        )?;
        Ok(Self { config: config.clone(), vocabulary })
    }

    /// Causal attention of all heads over `[windows, tokens, width]`.
    fn attend(
        &self,
        weights: &Weights<'_>,
        block: &str,
        x: Tensor<3>,
        future: &Tensor<2, Bool>,
    ) -> Tensor<3> {
        let [windows, tokens, width] = x.dims();
        let heads = self.config.heads;
        let of_head = width / heads;
        let mixed = apply_linear(weights, &format!("{block}.attention.qkv"), x);
        let [query, key, value] = [0, 1, 2].map(|third| {
            let part = mixed.clone().narrow(2, third * width, width);
            part.reshape([windows, tokens, heads, of_head]).swap_dims(1, 2)
        });
        let scale = 1.0 / (of_head as f32).sqrt();
        let scores = query.matmul(key.transpose()).mul_scalar(scale);
        let hidden = future.clone().unsqueeze::<4>().expand([windows, heads, tokens, tokens]);
        let shares = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 3);
        let joined = shares.matmul(value).swap_dims(1, 2).reshape([windows, tokens, width]);
        apply_linear(weights, &format!("{block}.attention.out"), joined)
    }

    fn block(&self, weights: &Weights<'_>, name: &str, x: Tensor<3>, future: &Tensor<2, Bool>) -> Tensor<3> {
        let normed = normalise(weights, &format!("{name}.norm1"), x.clone());
        let x = x + self.attend(weights, name, normed, future);
        let normed = normalise(weights, &format!("{name}.norm2"), x.clone());
        let wide = gelu(apply_linear(weights, &format!("{name}.mlp.up"), normed));
        x + apply_linear(weights, &format!("{name}.mlp.down"), wide)
    }

    fn block_specs(&self, name: &str) -> Vec<Spec> {
        let width = self.config.width;
        // Two branches of every block add to the stream; this keeps its size.
        let joining = DEVIATION / (2.0 * self.config.layers as f32).sqrt();
        let mut specs = Vec::new();
        specs.extend(norm_specs(&format!("{name}.norm1"), width));
        specs.extend(normal_specs(&format!("{name}.attention.qkv"), width, 3 * width, DEVIATION));
        specs.extend(normal_specs(&format!("{name}.attention.out"), width, width, joining));
        specs.extend(norm_specs(&format!("{name}.norm2"), width));
        specs.extend(normal_specs(&format!("{name}.mlp.up"), width, 4 * width, DEVIATION));
        specs.extend(normal_specs(&format!("{name}.mlp.down"), 4 * width, width, joining));
        specs
    }
}

impl Network for Gpt {
    fn specs(&self) -> Vec<Spec> {
        let GptConfig { context, width, layers, .. } = self.config;
        let mut specs = vec![
            Spec::new("embedding", &[self.vocabulary, width], Init::Normal(DEVIATION)),
            Spec::new("positions", &[context, width], Init::Normal(DEVIATION)),
        ];
        specs.extend((0..layers).flat_map(|n| self.block_specs(&format!("blocks.{n}"))));
        specs.extend(norm_specs("norm", width));
        specs.push(Spec::new("head", &[width, self.vocabulary], Init::Normal(DEVIATION)));
        specs
    }

    fn classes(&self) -> usize {
        self.vocabulary
    }

    fn check(&self, batch: &Batch) -> Result<(), String> {
        let Batch::Tokens { shape: [windows, tokens], inputs, targets } = batch else {
            return Err("images, expected text".to_owned());
        };
        let context = self.config.context;
        if !(1..=context).contains(tokens) {
            return Err(format!("windows of {tokens} tokens, expected 1 to {context}"));
        }
        if inputs.len() != windows * tokens || targets.len() != inputs.len() {
            return Err("its parts have different lengths".to_owned());
        }
        match inputs.iter().find(|&&token| token as usize >= self.vocabulary) {
            Some(token) => Err(format!("token {token} is not below {}", self.vocabulary)),
            None => Ok(()),
        }
    }

    fn logits(&self, weights: &Weights<'_>, batch: &Batch, device: &Device) -> Tensor<2> {
        let Batch::Tokens { shape: [windows, tokens], inputs, .. } = batch else {
            unreachable!("the batch was checked");
        };
        let future = Tensor::<2, Bool>::tril_mask([*tokens, *tokens], 0, device);
        let places = weights.matrix("positions").narrow(0, 0, *tokens).unsqueeze::<3>();
        let mut x =
            embedding(weights.matrix("embedding"), indices(inputs, [*windows, *tokens], device)) + places;
        for n in 0..self.config.layers {
            x = self.block(weights, &format!("blocks.{n}"), x, &future);
        }
        let x = normalise(weights, "norm", x).reshape([windows * tokens, self.config.width]);
        x.matmul(weights.matrix("head"))
    }
}

fn normalise(weights: &Weights<'_>, name: &str, x: Tensor<3>) -> Tensor<3> {
    let [gain, shift] = ["gain", "shift"].map(|part| weights.vector(&format!("{name}.{part}")));
    layer_norm(x, gain, Some(shift), NORM_EPSILON)
}

fn norm_specs(name: &str, width: usize) -> [Spec; 2] {
    [("gain", 1.0), ("shift", 0.0)]
        .map(|(part, value)| Spec::new(format!("{name}.{part}"), &[width], Init::Constant(value)))
}

fn normal_specs(name: &str, inputs: usize, outputs: usize, deviation: f32) -> [Spec; 2] {
    [
        Spec::new(format!("{name}.weight"), &[inputs, outputs], Init::Normal(deviation)),
        Spec::new(format!("{name}.bias"), &[outputs], Init::Constant(0.0)),
    ]
}
