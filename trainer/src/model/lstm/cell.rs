//! One layer of long short-term memory over a window of tokens, forward and backward.
//!
//! ```text
//! [i f g o](t) = x(t)·Wx + bx + h(t−1)·Wh + bh        rows: one per stream
//! c(t) = σ(f)·c(t−1) + σ(i)·tanh(g)
//! h(t) = σ(o)·tanh(c(t))
//! ```
//!
//! Rows are ordered by time and then by stream: row `t · streams + stream`. The products with the input, and
//! those that give the gradients of the weights, are each one product over the whole window; only the product
//! with the last output is made token by token.
//!
//! # Source
//!
//! Hochreiter, Schmidhuber, "Long short-term memory", Neural Computation 9(8), 1997, with the forget gate of
//! Gers, Schmidhuber, Cummins, 2000. Gates and the two biases in the order of PyTorch's `nn.LSTM`.

use gradwire::arithmetic::vectorised;

use super::super::exponential::{logistic, tanh};
use super::super::matrix::{Matrix, Product, add, add_product, add_rows, matrix, product};
use super::super::tiny::zero_if_tiny;

/// Gates of a cell: input, forget, candidate, output.
pub(super) const GATES: usize = 4;

/// The parameters of one layer, for one step.
pub(super) struct Layer {
    width: usize,
    input: Matrix,
    hidden: Matrix,
    /// The sum of both biases.
    bias: Vec<f32>,
}

/// Output and cell of every stream between two tokens: `streams · width` each.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    pub(super) output: Vec<f32>,
    pub(super) cell: Vec<f32>,
}

/// What the backward pass needs of the forward pass.
pub(super) struct Trace {
    input: Matrix,
    start: State,
    /// The gates after their functions, `rows · 4 · width`.
    gates: Product,
    /// Cells, `rows · width`.
    cells: Vec<f32>,
    /// Outputs, `rows · width`.
    pub(super) outputs: Vec<f32>,
}

/// Gradients of the parameters of one layer, in the order of the flat slice. Both biases have the same
/// gradient.
pub(super) struct Gradients<'a> {
    pub(super) input: &'a mut [f32],
    pub(super) hidden: &'a mut [f32],
    pub(super) biases: [&'a mut [f32]; 2],
}

impl State {
    /// The state before the first token.
    pub(super) fn new(streams: usize, width: usize) -> Self {
        Self { output: vec![0.0; streams * width], cell: vec![0.0; streams * width] }
    }
}

impl Layer {
    /// The layer with weights `[width, 4 · width]` and biases `[4 · width]`.
    pub(super) fn new(width: usize, input: &[f32], hidden: &[f32], biases: [&[f32]; 2]) -> Self {
        let [input, hidden] = [input, hidden].map(|weight| matrix(weight.to_vec(), GATES * width));
        let bias = biases[0].iter().zip(biases[1]).map(|(first, second)| first + second).collect();
        Self { width, input, hidden, bias }
    }

    /// Reads a window of inputs `[rows, width]`. Moves the state past its last token.
    pub(super) fn forward(&self, input: Vec<f32>, state: &mut State) -> Trace {
        let (width, at_once) = (self.width, state.cell.len());
        let input = matrix(input, width);
        let start = state.clone();
        let mut gates = product(&input, &self.input);
        let (mut cells, mut outputs) = (Vec::new(), Vec::new());
        for gates in gates.chunks_exact_mut(GATES * at_once) {
            let hidden = product(&matrix(state.output.clone(), width), &self.hidden);
            add(gates, &hidden);
            vectorised(
                #[inline(always)]
                || self.advance(gates, state),
            );
            cells.extend_from_slice(&state.cell);
            outputs.extend_from_slice(&state.output);
        }
        Trace { input, start, gates, cells, outputs }
    }

    /// One token of every stream: applies the functions of the gates in place, and moves the state.
    #[inline(always)]
    fn advance(&self, gates: &mut [f32], state: &mut State) {
        let width = self.width;
        let streams = gates.chunks_exact_mut(GATES * width);
        let states = state.cell.chunks_exact_mut(width).zip(state.output.chunks_exact_mut(width));
        for (gates, (cell, output)) in streams.zip(states) {
            add(gates, &self.bias);
            let (sigmoids, rest) = gates.split_at_mut(2 * width);
            let (candidate, out) = rest.split_at_mut(width);
            sigmoids.iter_mut().chain(out.iter_mut()).for_each(|gate| *gate = logistic(*gate));
            candidate.iter_mut().for_each(|gate| *gate = tanh(*gate));
            let (enter, keep) = sigmoids.split_at(width);
            for j in 0..width {
                cell[j] = keep[j] * cell[j] + enter[j] * candidate[j];
                output[j] = zero_if_tiny(out[j] * tanh(cell[j]));
            }
        }
    }

    /// Returns the gradient of the inputs, computed from that of the outputs, and writes the gradients of the
    /// parameters. The state before the window counts as constant.
    pub(super) fn backward(&self, trace: &Trace, mut outer: Vec<f32>, gradients: Gradients<'_>) -> Vec<f32> {
        let (width, at_once) = (self.width, trace.start.cell.len());
        let hidden = self.hidden.clone().transpose();
        let mut before_gates = vec![0.0; trace.gates.len()];
        let mut cell_gradient = vec![0.0; at_once];
        let tokens = trace.cells.len() / at_once;
        for t in (0..tokens).rev() {
            let (here, gates) =
                (t * at_once..(t + 1) * at_once, t * GATES * at_once..(t + 1) * GATES * at_once);
            let before = &mut before_gates[gates.clone()];
            let (cells, last) = (&trace.cells[here.clone()], self.cells_before(trace, t, at_once));
            let outer_here = &outer[here];
            vectorised(
                #[inline(always)]
                || {
                    self.retreat(&trace.gates[gates], [cells, last, outer_here], &mut cell_gradient, before);
                },
            );
            if t > 0 {
                let earlier = &mut outer[(t - 1) * at_once..t * at_once];
                add_product(earlier, &matrix(before.to_vec(), GATES * width), &hidden);
            }
        }
        self.sum_up(trace, before_gates, gradients)
    }

    /// The cells before token `t`.
    fn cells_before<'t>(&self, trace: &'t Trace, t: usize, at_once: usize) -> &'t [f32] {
        if t == 0 { &trace.start.cell } else { &trace.cells[(t - 1) * at_once..t * at_once] }
    }

    /// One token of every stream: the gradient of the gates' inputs, and that of the cells before.
    #[inline(always)]
    fn retreat(
        &self,
        gates: &[f32],
        [cells, last, outer]: [&[f32]; 3],
        cell_gradient: &mut [f32],
        before: &mut [f32],
    ) {
        let width = self.width;
        let streams = gates.chunks_exact(GATES * width).zip(before.chunks_exact_mut(GATES * width));
        for (stream, (gates, before)) in streams.enumerate() {
            let here = stream * width..(stream + 1) * width;
            let (cells, last, outer) = (&cells[here.clone()], &last[here.clone()], &outer[here.clone()]);
            let carried = &mut cell_gradient[here];
            let [enter, keep, candidate, out] = quarters(gates);
            let (first, second) = before.split_at_mut(2 * width);
            let (d_enter, d_keep) = first.split_at_mut(width);
            let (d_candidate, d_out) = second.split_at_mut(width);
            for j in 0..width {
                let squashed = tanh(cells[j]);
                let d_cell = carried[j] + outer[j] * out[j] * (1.0 - squashed * squashed);
                d_enter[j] = zero_if_tiny(d_cell * candidate[j] * enter[j] * (1.0 - enter[j]));
                d_keep[j] = zero_if_tiny(d_cell * last[j] * keep[j] * (1.0 - keep[j]));
                d_candidate[j] = zero_if_tiny(d_cell * enter[j] * (1.0 - candidate[j] * candidate[j]));
                d_out[j] = zero_if_tiny(outer[j] * squashed * out[j] * (1.0 - out[j]));
                carried[j] = zero_if_tiny(d_cell * keep[j]);
            }
        }
    }

    /// Gradients of weights and inputs, from those of the gates' inputs.
    fn sum_up(&self, trace: &Trace, before_gates: Vec<f32>, gradients: Gradients<'_>) -> Vec<f32> {
        let [first, second] = gradients.biases;
        first.fill(0.0);
        add_rows(first, &before_gates);
        second.copy_from_slice(first);
        let at_once = trace.start.output.len();
        let mut earlier = trace.start.output.clone();
        earlier.extend_from_slice(&trace.outputs[..trace.outputs.len() - at_once]);
        let before_gates = matrix(before_gates, GATES * self.width);
        let earlier = matrix(earlier, self.width);
        gradients.input.copy_from_slice(&product(&trace.input.clone().transpose(), &before_gates));
        gradients.hidden.copy_from_slice(&product(&earlier.transpose(), &before_gates));
        product(&before_gates, &self.input.clone().transpose()).to_vec()
    }
}

fn quarters(gates: &[f32]) -> [&[f32]; GATES] {
    let width = gates.len() / GATES;
    [0, 1, 2, 3].map(|gate| &gates[gate * width..(gate + 1) * width])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers between minus and plus `limit`.
    fn spread(len: usize, limit: f32) -> Vec<f32> {
        let numbers =
            (0..len as u32).map(|at| at.wrapping_mul(2_654_435_761).rotate_left(7) as f32 / u32::MAX as f32);
        numbers.map(|number| (2.0 * number - 1.0) * limit).collect()
    }

    #[test]
    fn gates_that_saturate_leave_hardly_any_subnormal_numbers() {
        let (width, streams, tokens) = (16, 4, 35);
        for limit in [0.1, 4.0, 30.0, 200.0] {
            let (input, hidden) =
                (spread(width * GATES * width, limit), spread(GATES * width * width, limit * 0.7));
            let layer =
                Layer::new(width, &input, &hidden, [&vec![0.0; GATES * width], &vec![0.5; GATES * width]]);
            let mut state = State::new(streams, width);
            let trace = layer.forward(spread(tokens * streams * width, 1.0), &mut state);
            let (mut d_input, mut d_hidden) = (vec![0.0; input.len()], vec![0.0; hidden.len()]);
            let (mut first, mut second) = (vec![0.0; GATES * width], vec![0.0; GATES * width]);
            let gradients =
                Gradients { input: &mut d_input, hidden: &mut d_hidden, biases: [&mut first, &mut second] };
            let d_rows = layer.backward(&trace, spread(tokens * streams * width, 1e-4), gradients);
            for numbers in [&trace.outputs, &d_rows, &d_input, &d_hidden, &first] {
                let subnormal = numbers.iter().filter(|number| number.is_subnormal()).count();
                assert!(subnormal * 100 <= numbers.len(), "{limit}: {subnormal} of {}", numbers.len());
            }
            assert!(d_input.iter().any(|&number| number != 0.0), "{limit}");
        }
    }
}
