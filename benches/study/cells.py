"""The cells of the study: which runs there are, and what the thesis found in their place.

The thesis: D. J. Harris, MSc, University of Edinburgh, 2020; its text of 2024 is arXiv 2502.07634. Penn Treebank by words, an
LSTM of two layers with tied embeddings, a global batch of 256, 35 steps of back-propagation, plain SGD, the norm of the mean
clipped at 0.25.
"""

from dataclasses import dataclass

# Codec of each row, as this project spells it, and the thesis's name for it. Compressors are per tensor and keep their error,
# but for quantisation, which keeps nothing and has no entropy coder there; its levels are sent as these frames pack them.
CODECS = {
    "none": "none",
    "top-k 0.01": "topk:density=0.01,unit=tensor",
    "top-k 0.001": "topk:density=0.001,unit=tensor",
    "top-k 0.0001": "topk:density=0.0001,unit=tensor",
    "DGC 0.01": "dgc:density=0.01,warmup=0,unit=tensor,dense_1d=false",
    "DGC 0.001": "dgc:density=0.001,warmup=0,unit=tensor,dense_1d=false",
    "DGC 0.0001": "dgc:density=0.0001,warmup=0,unit=tensor,dense_1d=false",
    "random-k 0.01": "randomk:density=0.01,unit=tensor",
    "QSGD 64": "qsgd:levels=64,norm=l2,bucket=4294967295,unit=tensor",
    "QSGD 16": "qsgd:levels=16,norm=l2,bucket=4294967295,unit=tensor",
    "QSGD 4": "qsgd:levels=4,norm=l2,bucket=4294967295,unit=tensor",
}

# Rates are chosen once for each family, by one worker, two epochs; the members of a family share the rate. While the largest
# rate that was tried is the best, twice as much is tried, up to MOST_RATE.
FAMILIES = {
    "none": "none",
    "top-k": "top-k 0.01",
    "DGC": "DGC 0.01",
    "random-k": "random-k 0.01",
    "QSGD": "QSGD 16",
}
RATES, MOST_RATE = [10, 20, 40], 160
# DGC brings a momentum of 0.9. What it gains over dense training and top-k is judged by those with the same momentum, in the
# optimizer; it makes their steps up to ten times as long, so they are families of their own, with lower rates.
MOMENTUM, MOMENTUM_RATES = 0.9, [2, 4, 8]
PRE_EPOCHS, EPOCHS = 2, 8

# Of a global batch of 256 streams of 35 words.
STEPS_AN_EPOCH = 103

# Best test perplexity of the thesis, small model (hidden size 100), one worker and two; up to 50 epochs, rates and dropout by
# random search, one seed. It has no four workers of that size. Random-k "collapses"; the text gives no figure here.
THESIS = {
    "none": (116.398, 115.113),
    "top-k 0.01": (110.814, 114.365),
    "top-k 0.001": (120.008, 117.742),
    "top-k 0.0001": (169.623, 151.729),
    "DGC 0.01": (109.912, 111.001),
    "DGC 0.001": (117.002, 120.002),
    "DGC 0.0001": (166.213, 160.590),
    "random-k 0.01": (None, None),
    "QSGD 64": (115.023, 118.521),
    "QSGD 16": (117.987, 114.995),
    "QSGD 4": (115.717, 115.133),
}
# What it calls the ratios.
NOMINAL = {
    "none": 1,
    "top-k 0.01": 50,
    "top-k 0.001": 500,
    "top-k 0.0001": 5000,
    "DGC 0.01": 50,
    "DGC 0.001": 500,
    "DGC 0.0001": 5000,
    "random-k 0.01": 50,
    "QSGD 64": 4.6,
    "QSGD 16": 6.4,
    "QSGD 4": 10.7,
}


@dataclass(frozen=True)
class Cell:
    codec: str
    workers: int
    seed: int
    epochs: int
    # None: the rate that the pre-runs chose for the family.
    rate: float | None = None
    # In place of the epochs.
    steps: int | None = None
    # Of the optimizer.
    momentum: float | None = None

    @property
    def name(self):
        rate = "" if self.rate is None else f"-lr{self.rate:g}"
        momentum = "" if self.momentum is None else f"-m{self.momentum:g}"
        codec = self.codec.replace(" ", "-")
        length = f"e{self.epochs}" if self.steps is None else f"{self.steps}steps"
        return f"{codec}-w{self.workers}-s{self.seed}-{length}{rate}{momentum}"

    @property
    def spelling(self):
        """As `trainer compare` is told of it."""
        momentum = "" if self.momentum is None else f" momentum={self.momentum:g}"
        return f"{CODECS[self.codec]}{momentum}"

    def dense(self):
        """The cell that this one is judged by: dense, with the same seed, workers and momentum, DGC's own included."""
        momentum = MOMENTUM if self.codec.startswith("DGC") else self.momentum
        return Cell("none", self.workers, self.seed, self.epochs, momentum=momentum)

    def pre_run(self, rate):
        """The run that tries a rate for its family."""
        family = self.codec.rsplit(" ", 1)[0]
        return Cell(FAMILIES[family], 1, 0, PRE_EPOCHS, rate, momentum=self.momentum)

    def rates(self):
        """The rates that are tried at first."""
        return RATES if self.momentum is None else MOMENTUM_RATES


def with_momentum(codec, seed):
    return Cell(codec, 1, seed, EPOCHS, momentum=MOMENTUM)


PRE_RUNS = [Cell(codec, 1, 0, EPOCHS).pre_run(rate) for codec in FAMILIES.values() for rate in RATES]
ONE_WORKER = [Cell(codec, 1, 0, EPOCHS) for codec in CODECS]
FOUR_WORKERS = [Cell(codec, 4, 0, EPOCHS) for codec in ["none", "top-k 0.01", "top-k 0.0001", "DGC 0.01", "DGC 0.0001"]]
MORE_SEEDS = [Cell(codec, 1, seed, EPOCHS) for codec in ["none", "top-k 0.01", "DGC 0.01"] for seed in [1, 2]]
# Between the best rates of top-k and of dense gradients; and below that of quantisation with 16 levels, for noisier ones.
MORE_RATES = [Cell("top-k 0.01", 1, 0, EPOCHS, 30), *(Cell("QSGD 4", 1, 0, EPOCHS, rate) for rate in [20, 10])]
# Dense before top-k: it is the yardstick. Then top-k with half of the rate that its pre-runs chose.
WITH_MOMENTUM = [with_momentum(codec, seed) for codec in ["none", "top-k 0.01"] for seed in [0, 1, 2]]
WITH_MOMENTUM += [Cell("top-k 0.01", 1, seed, EPOCHS, 8, momentum=MOMENTUM) for seed in [0, 1, 2]]
# The order in which they are run: what answers most comes first.
PARTS = {
    "pre": PRE_RUNS,
    "one": ONE_WORKER,
    "four": FOUR_WORKERS,
    "seeds": MORE_SEEDS,
    "rates": MORE_RATES,
    "momentum": WITH_MOMENTUM,
}
# What takes how long, which needs a quiet machine and few steps.
TIMED_STEPS = 20
TIMES = [Cell(codec, 4, 0, 1, RATES[0], TIMED_STEPS) for codec in CODECS]
