//! What the words before the `=` of spellings mean.

/// A key, and what it means in every codec that has it.
#[derive(Clone, Copy, Debug)]
pub struct KeyEntry {
    /// The key.
    pub key: &'static str,
    /// What it means, in one line.
    pub means: &'static str,
}

/// Every key of a codec of [`CODECS`](super::CODECS), once, in the order of the alphabet. A word means the
/// same in all codecs that have it: take one of these before you invent another.
pub const KEYS: &[KeyEntry] = &[
    entry("bits", "bits of a level; of a finer scale, too, after a `+`"),
    entry(
        "block",
        "what is drawn as a whole: nothing (`none`), a `run` of neighbours, or a `tile` of a matrix",
    ),
    entry("bucket", "coordinates that share a norm"),
    entry("by", "how the coordinates that all workers share are found"),
    entry("candidates", "coordinates whose exact values are summed for each that is sent"),
    entry("cap", "whether no more than the density says is sent"),
    entry("cells", "cells of a sketch for each coordinate of a unit"),
    entry("chunk", "coordinates of a chunk; of each chunk, the largest are sent"),
    entry(
        "clip",
        "the norm of the whole gradient, over all workers, to which it is shortened before it is encoded",
    ),
    entry("columns", "columns of a sketch for each coordinate that is sought"),
    entry("decay", "what is left, after each step, of what is kept for the next: a factor"),
    entry("dense_1d", "tensors of at most one dimension are sent dense"),
    entry("dense_below", "tensors with fewer elements are sent dense"),
    entry("density", "the share of coordinates that is sent"),
    entry("diffusion", "how far a round of gossip moves, as a multiple of the weight of an edge"),
    entry("entropy", "how levels are coded"),
    entry("error", "who keeps what was not sent: the `sketch`, or the `workers`"),
    entry("estimator", "whether the mean is unbiased, or what is kept shrinks"),
    entry("feedback", "what workers keep: the `residual`, or an estimate that they correct (`ef21`)"),
    entry("fit", "the distribution that is fitted to the magnitudes"),
    entry("floor", "what a mean of squares is at first, and the least that it counts as"),
    entry("index", "how positions are coded"),
    entry("iterations", "rounds of a step, each one of a power iteration"),
    entry("levels", "levels of each sign, where `bits` does not say it"),
    entry("lowpass", "how much of a new residual replaces the old one: a factor"),
    entry("max_packet_bytes", "the largest packet, if a gradient is to be several frames"),
    entry(
        "memory",
        "what is kept for the next step: `none`, `ef` (what was not sent), `momentum` or `state`",
    ),
    entry("min_rate", "how many times smaller a matrix must become; others are sent whole"),
    entry("moments", "by what the mean is divided: nothing (`none`), or as in AMSGrad (`amsgrad`)"),
    entry("momentum", "the factor of the momentum that the codec owns"),
    entry("nesterov", "that momentum looks one step ahead"),
    entry("norm", "which norm scales a bucket"),
    entry("rank", "columns of a factor"),
    entry("rounding", "how a value becomes one of a few: to the nearest, or at random"),
    entry("rows", "rows of a sketch"),
    entry("sample", "the share of coordinates that a threshold is estimated from"),
    entry("sigmas", "the number of standard deviations from which on magnitudes are cut off"),
    entry("squares", "the factor of a mean of squares"),
    entry("stages", "how often it is fitted, each time to what is above the threshold before"),
    entry("start", "the step from which on it compresses"),
    entry("unit", "what is encoded together: `model` or `tensor`"),
    entry("value", "the magnitude from which on a coordinate is sent"),
    entry("values", "how the values of chosen coordinates are coded"),
    entry("warmup", "epochs in which the density falls to that"),
    entry("width", "how narrow the search for a threshold becomes"),
];

const fn entry(key: &'static str, means: &'static str) -> KeyEntry {
    KeyEntry { key, means }
}
