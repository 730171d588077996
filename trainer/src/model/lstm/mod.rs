//! Layers of long short-term memory that read streams of tokens and predict the next one.
//!
//! ```text
//! x0 = drop(embedding[token]);  x1 = drop(layer0(x0));  x2 = drop(layer1(x1))
//! scores = x2 · embeddingᵀ
//! ```
//!
//! What a stream has read is carried from one window to the next; gradients end at the window's first token.
//!
//! # Source
//!
//! Zaremba, Sutskever, Vinyals, "Recurrent neural network regularization", arXiv:1409.2329: dropout between
//! layers, not in time. Press, Wolf, "Using the output embedding to improve language models",
//! arXiv:1608.05859: one matrix for input and output; there is no bias at the output.

mod cell;
mod decoder;

use super::autodiff::check_targets;
use super::dropout::Dropout;
use super::init::{Init, Spec};
use super::matrix::{Matrix, matrix};
use super::network::Moment;
use super::{Model, ModelError, Parameters, Score};
use crate::data::{Batch, Task};
use crate::range::{RangeError, require};
use cell::{GATES, Gradients, Layer, State, Trace};
use decoder::Decoder;

/// Initial embeddings lie between plus and minus this.
const EMBEDDING_LIMIT: f32 = 0.1;

/// Sizes of a recurrent language model, and its dropout.
#[derive(Clone, Debug, PartialEq)]
pub struct LstmConfig {
    /// Tokens of a window, through which gradients flow.
    pub context: usize,
    /// Length of the vector of a token, and of the output and the cell of every layer.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Probability with which a value is dropped in training: of embeddings, between layers, before the
    /// output. 0 to below 1.
    pub dropout: f64,
}

impl Default for LstmConfig {
    /// Windows of 35 tokens, 2 layers of 100, no dropout: 1,161,600 parameters for the 10,000 words of PTB.
    fn default() -> Self {
        Self { context: 35, width: 100, layers: 2, dropout: 0.0 }
    }
}

/// The network with its parameters.
pub(super) struct Lstm {
    config: LstmConfig,
    vocabulary: usize,
    params: Parameters,
    /// Where in the run the next gradient is computed.
    moment: Option<Moment>,
    /// The states of this worker's streams, by layer; empty at the beginning.
    carried: Vec<State>,
}

impl Lstm {
    pub(super) fn new(config: &LstmConfig, task: &Task, seed: u64) -> Result<Self, ModelError> {
        let Task::Tokens { vocabulary } = *task else {
            return Err(RangeError::new("model", "lstm", "mlp, cnn or resnet20, which read images").into());
        };
        let LstmConfig { context, width, layers, dropout } = *config;
        require((1..=4096).contains(&context), "bptt", context, "1 to 4096")?;
        require((1..=4096).contains(&width), "hidden", width, "1 to 4096")?;
        require((1..=16).contains(&layers), "layers", layers, "1 to 16")?;
        require((0.0..1.0).contains(&dropout), "dropout", dropout, "0 to below 1")?;
        let params = Parameters::new(specs(config, vocabulary), seed);
        Ok(Self { config: config.clone(), vocabulary, params, moment: None, carried: Vec::new() })
    }

    /// The embedding, and the layers.
    fn parts(&self) -> (Matrix, Vec<Layer>) {
        let width = self.config.width;
        let (embedding, mut rest) = self.params.values().split_at(self.vocabulary * width);
        let layers = (0..self.config.layers).map(|_| {
            let [input, input_bias, hidden, hidden_bias] = take(&mut rest, width);
            Layer::new(width, input, hidden, [input_bias, hidden_bias])
        });
        let layers = layers.collect();
        (matrix(embedding.to_vec(), width), layers)
    }

    /// The embeddings of tokens, row by row.
    fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let width = self.config.width;
        let embedding = self.params.values();
        tokens.iter().flat_map(|&token| &embedding[token as usize * width..][..width]).copied().collect()
    }

    fn check(&self, batch: &Batch) -> Result<Window, ModelError> {
        check_targets(batch, self.vocabulary)?;
        Window::of(batch, self.vocabulary).map_err(ModelError::Batch)
    }

    /// States at the beginning of a stream.
    fn fresh(&self, streams: usize) -> Vec<State> {
        (0..self.config.layers).map(|_| State::new(streams, self.config.width)).collect()
    }

    /// Predicts a window without learning. Moves the states past it.
    fn read(&self, window: &Window, states: &mut [State]) -> Score {
        let (embedding, layers) = self.parts();
        let mut x = self.embed(&window.inputs);
        for (layer, state) in layers.iter().zip(states) {
            x = layer.forward(x, state).outputs;
        }
        Decoder::new(&embedding).score(&x, &window.targets)
    }

    /// Loss and gradient of a window. Moves the states past it.
    fn learn(
        &self,
        window: &Window,
        states: &mut [State],
        dropout: Option<Dropout>,
        grad: &mut [f32],
    ) -> f64 {
        let (embedding, layers) = self.parts();
        let mut masks = Masks { dropout, factors: Vec::new() };
        let mut x = self.embed(&window.inputs);
        masks.drop_some(&mut x);
        let mut traces: Vec<Trace> = Vec::new();
        for (layer, state) in layers.iter().zip(states) {
            let trace = layer.forward(x, state);
            x = trace.outputs.clone();
            masks.drop_some(&mut x);
            traces.push(trace);
        }
        let (d_embedding, d_layers) = grad.split_at_mut(self.vocabulary * self.config.width);
        d_embedding.fill(0.0);
        let (loss, mut dx) = Decoder::new(&embedding).backward(&x, &window.targets, d_embedding);
        let gradients = layer_gradients(d_layers, self.config.width);
        for ((layer, trace), gradients) in layers.iter().zip(&traces).zip(gradients).rev() {
            masks.undo(&mut dx);
            dx = layer.backward(trace, dx, gradients);
        }
        masks.undo(&mut dx);
        let width = self.config.width;
        for (&token, row) in window.inputs.iter().zip(dx.chunks_exact(width)) {
            super::matrix::add(&mut d_embedding[token as usize * width..][..width], row);
        }
        loss
    }
}

impl Model for Lstm {
    fn parameters(&self) -> &Parameters {
        &self.params
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.params
    }

    fn begin(&mut self, moment: Moment) {
        self.moment = Some(moment);
    }

    fn forward_backward(&mut self, batch: &Batch, grad: &mut [f32]) -> Result<f32, ModelError> {
        assert_eq!(grad.len(), self.len(), "a gradient is as long as the parameters");
        let window = self.check(batch)?;
        let moment = self.moment.take();
        let goes_on = moment.is_some_and(|moment| !moment.starts_epoch);
        let mut states = std::mem::take(&mut self.carried);
        let is_same =
            states.first().is_some_and(|state| state.cell.len() == window.streams * self.config.width);
        if !goes_on || !is_same {
            states = self.fresh(window.streams);
        }
        let rate = self.config.dropout;
        let dropout = moment.filter(|_| rate > 0.0).map(|moment| Dropout::new(rate, moment));
        let loss = self.learn(&window, &mut states, dropout, grad);
        if moment.is_some() {
            self.carried = states;
        }
        Ok(loss as f32)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, ModelError> {
        let window = self.check(batch)?;
        Ok(self.read(&window, &mut self.fresh(window.streams)))
    }

    fn evaluate_in_order(&mut self, batches: &mut dyn Iterator<Item = Batch>) -> Result<Score, ModelError> {
        let (mut score, mut states) = (Score::default(), Vec::new());
        for batch in batches {
            let window = self.check(&batch)?;
            if states.is_empty() {
                states = self.fresh(window.streams);
            }
            score += self.read(&window, &mut states);
        }
        Ok(score)
    }

    fn carried(&self) -> Vec<f32> {
        self.carried.iter().flat_map(|state| [&state.output, &state.cell]).flatten().copied().collect()
    }

    fn carry(&mut self, carried: &[f32]) -> Result<(), String> {
        let (layers, width) = (self.config.layers, self.config.width);
        if !carried.len().is_multiple_of(2 * layers * width) {
            return Err(format!(
                "{} values carried, not a multiple of {}",
                carried.len(),
                2 * layers * width
            ));
        }
        let halves: Vec<&[f32]> = carried.chunks_exact((carried.len() / (2 * layers)).max(1)).collect();
        let state = |pair: &[&[f32]]| State { output: pair[0].to_vec(), cell: pair[1].to_vec() };
        self.carried = halves.chunks_exact(2).map(state).collect();
        Ok(())
    }
}

/// The masks of one forward pass. The backward pass takes the last one first.
struct Masks {
    dropout: Option<Dropout>,
    factors: Vec<Vec<f32>>,
}

impl Masks {
    fn drop_some(&mut self, x: &mut [f32]) {
        if let Some(dropout) = &mut self.dropout {
            self.factors.push(dropout.drop_some(x));
        }
    }

    fn undo(&mut self, dx: &mut [f32]) {
        if let Some(factors) = self.factors.pop() {
            dx.iter_mut().zip(&factors).for_each(|(dx, factor)| *dx *= factor);
        }
    }
}

/// A batch of tokens in the order in which they are read: row `t · streams + stream`.
struct Window {
    streams: usize,
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Window {
    fn of(batch: &Batch, vocabulary: usize) -> Result<Self, String> {
        let Batch::Tokens { shape: [streams, tokens], inputs, targets } = batch else {
            return Err("images, expected text".to_owned());
        };
        if inputs.len() != streams * tokens || targets.len() != inputs.len() {
            return Err("its parts have different lengths".to_owned());
        }
        if let Some(token) = inputs.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(format!("token {token} is not below {vocabulary}"));
        }
        let by_time = |of: &[u32]| {
            (0..*tokens).flat_map(|t| (0..*streams).map(move |stream| of[stream * tokens + t])).collect()
        };
        Ok(Self { streams: *streams, inputs: by_time(inputs), targets: by_time(targets) })
    }
}

fn specs(config: &LstmConfig, vocabulary: usize) -> Vec<Spec> {
    let width = config.width;
    let limit = Init::Uniform(1.0 / (width as f32).sqrt());
    let mut specs = vec![Spec::new("embedding", &[vocabulary, width], Init::Uniform(EMBEDDING_LIMIT))];
    for (layer, part) in (0..config.layers).flat_map(|layer| ["input", "hidden"].map(|part| (layer, part))) {
        let name = format!("layers.{layer}.{part}");
        specs.push(Spec::new(format!("{name}.weight"), &[width, GATES * width], limit));
        specs.push(Spec::new(format!("{name}.bias"), &[GATES * width], limit));
    }
    specs
}

/// Lengths of the parameters of a layer.
fn lens(width: usize) -> [usize; 4] {
    let (weight, bias) = (GATES * width * width, GATES * width);
    [weight, bias, weight, bias]
}

/// The parameters of the next layer.
fn take<'a>(rest: &mut &'a [f32], width: usize) -> [&'a [f32]; 4] {
    lens(width).map(|len| {
        let (here, tail) = rest.split_at(len);
        *rest = tail;
        here
    })
}

fn layer_gradients(flat: &mut [f32], width: usize) -> Vec<Gradients<'_>> {
    let of_layer = |layer| {
        let mut rest: &mut [f32] = layer;
        let [input, first, hidden, second] = lens(width).map(|len| {
            let (here, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            here
        });
        Gradients { input, hidden, biases: [first, second] }
    };
    flat.chunks_exact_mut(lens(width).iter().sum()).map(of_layer).collect()
}
