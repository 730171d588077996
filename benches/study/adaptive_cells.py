"""The runs of adaptive.py: which models are trained, and how their densities are decided."""

import itertools
from dataclasses import dataclass

WORKERS = 4

# Controllers see windows that fit into runs of some hundred steps. GraVAC's gain with the densities 0.1 and 0.05 is about its
# default `eps`, 0.7; the smaller one was added when that had been seen.
STATIC = {
    "dense": ["--codec", "none"],
    "0.1": ["--codec", "topk:density=0.1"],
    "0.01": ["--codec", "topk:density=0.01"],
    "0.001": ["--codec", "topk:density=0.001"],
}
ADAPTIVE = {
    "GraVAC, exponential": ["--codec", "topk", "--adapt", "gravac:min=10,max=1000,window=50"],
    "GraVAC, geometric": ["--codec", "topk", "--adapt", "gravac:min=10,max=1000,window=50,policy=geometric"],
    "GraVAC, eps 0.5": ["--codec", "topk", "--adapt", "gravac:min=10,max=1000,window=50,eps=0.5"],
    "Accordion": ["--codec", "topk", "--adapt", "accordion:low=0.1,high=0.01,window=2"],
}
METHODS = {**STATIC, **ADAPTIVE}


@dataclass(frozen=True)
class Model:
    """What is trained, with steps in an epoch, and whether more of the measure is better."""

    title: str
    data: str
    settings: tuple
    epochs: int
    steps_an_epoch: int
    measure: str
    rises: bool

    def is_as_good(self, value, wanted):
        return value >= wanted if self.rises else value <= wanted

    def best(self, values):
        return max(values) if self.rises else min(values)

    def nearly(self, value, share):
        """What counts as that share of it."""
        return value * share if self.rises else value / share


MODELS = {
    "resnet20": Model(
        "ResNet-20, CIFAR-10",
        "cifar-10",
        ("--batch", 128, "--lr", 0.1, "--momentum", 0.9, "--weight-decay", 1e-4, "--schedule", "step", "--decay-every", 780),
        15,
        78,
        "accuracy",
        True,
    ),
    "lstm": Model(
        "LSTM, PTB", "ptb", ("--batch", 256, "--hidden", 100, "--clip-mean", 0.25, "--lr", 20), 6, 103, "perplexity", False
    ),
}
QUICK = {
    "resnet20": ("--data", "optdigits", "--batch", 64, "--steps", 4),
    "lstm": ("--data", "tiny-shakespeare", "--batch", 32, "--hidden", 16, "--steps", 4),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    model: str
    method: str

    @property
    def name(self):
        """Of its folder."""
        return f"{self.model}-{self.method.replace(', ', '-').replace(' ', '-')}"


CELLS = [Cell(*pair) for pair in itertools.product(MODELS, METHODS)]
