"""What is measured by wallclock.py, and what wallclock_report.py makes of it."""

import re
import statistics
from dataclasses import dataclass

HOSTS = 4
RATES = [10, 100, 1000]
# How often everything is timed at a rate, one round after the other. On slow links the way takes most of the time, which
# is long, and the same each time.
ROUNDS = {10: 1, 100: 3, 1000: 3}
SEEDS = [1, 2, 3]
# In a line of progress.
STEPS_OF = re.compile(r"step (\d+)/\d+")


@dataclass
class Model:
    name: str
    # The folder of its data below GRADWIRE_DATA/data; none where the data is shipped.
    folder: str | None
    settings: list
    # Examples a step, of all workers together.
    batch: int
    steps: int
    eval_every: int
    # What an evaluation says, and whether more of it is better.
    measure: str
    rises: bool
    learning_rates: list


MODELS = {
    "mlp": Model(
        "MLP, Fashion-MNIST",
        "fashion-mnist",
        ["--data", "fashion-mnist", "--model", "mlp", "--hidden", "512,256"],
        128,
        600,
        25,
        "accuracy",
        True,
        [0.05, 0.1, 0.2, 0.4],
    ),
    "cnn": Model(
        "CNN, optdigits",
        None,
        ["--data", "optdigits", "--model", "cnn"],
        128,
        400,
        20,
        "accuracy",
        True,
        [0.2, 0.4, 0.8],
    ),
    "gpt": Model(
        "transformer, tiny Shakespeare",
        None,
        ["--data", "tiny-shakespeare", "--model", "gpt"],
        16,
        300,
        25,
        "eval_loss",
        False,
        [0.05, 0.1, 0.2, 0.4],
    ),
}

# The first is what the others are compared with. Sums of the MPI library are timed beside those of this project, which
# they equal but for the last bits, and the faster ones are the baseline.
METHODS = {
    "f32": ["--codec", "none", "--exchange", "all-reduce"],
    "native f32": ["--codec", "none", "--exchange", "native"],
    "bf16": ["--codec", "none", "--exchange", "all-reduce", "--wire", "bf16"],
    "native bf16": ["--codec", "none", "--exchange", "native", "--wire", "bf16"],
    "qsgd 4 bits": ["--codec", "qsgd:bits=4,entropy=rans"],
    "top-k 1 %": ["--codec", "topk:density=0.01"],
    "top-k 1 %, q4": ["--codec", "topk:density=0.01,values=q4"],
    "top-k 0.1 %": ["--codec", "topk:density=0.001"],
    "top-k 0.1 %, q4": ["--codec", "topk:density=0.001,values=q4"],
}


# How far below dense's final accuracy counts as equal; for a loss, how much more of it.
POINTS, LOSS_FACTOR = 0.005, 1.01
# Whose evaluations there are: what a sum learns does not depend on who sums.
CURVES = [method for method in METHODS if not method.startswith("native")]


class Curves:
    """Evaluations by step of one model, for each method, learning rate and seed that was run."""

    def __init__(self, lines, model):
        self.about = MODELS[model]
        self.runs = {
            (line["method"], line["lr"], line["seed"]): line["evaluations"]
            for line in lines
            if line["kind"] == "curve" and line["model"] == model
        }

    def of(self, method, lr):
        """One for each seed."""
        return [run for (of, rate, _), run in sorted(self.runs.items()) if (of, rate) == (method, lr)]

    def final(self, method, lr):
        """What the runs end with, in the mean. Two evaluations of each move less than one."""
        return statistics.mean(value for run in self.of(method, lr) for _, value in run[-2:])

    def reference_rate(self):
        """The learning rate with which dense ends best, with the first seed."""
        return max(self.about.learning_rates, key=lambda lr: self.goodness(self.runs["f32", lr, SEEDS[0]]))

    def target(self):
        dense = self.final("f32", self.reference_rate())
        return dense - POINTS if self.about.rises else dense * LOSS_FACTOR

    def steps(self, run):
        """To equal accuracy; infinite where a run does not come so far."""
        target = self.target()
        reached = (step for step, value in run if (value >= target if self.about.rises else value <= target))
        return next(reached, float("inf"))

    def candidates(self, method):
        """The learning rates with which a method is as good as dense first, and ends best, with the first seed."""
        first = {lr: self.runs[method, lr, SEEDS[0]] for lr in self.about.learning_rates}
        fastest = max(first, key=lambda lr: (-self.steps(first[lr]), self.goodness(first[lr])))
        return {fastest, max(first, key=lambda lr: self.goodness(first[lr]))}

    def median_steps(self, method, lr):
        """To equal accuracy; infinite where most seeds do not come so far."""
        return statistics.median(self.steps(run) for run in self.of(method, lr))

    def best_rate(self, method):
        """Of the learning rates that were tried with all seeds, that with which a method is as good as dense first."""
        tried = [lr for lr in self.about.learning_rates if len(self.of(method, lr)) == len(SEEDS)]
        return min(tried, key=lambda lr: self.median_steps(method, lr))

    def goodness(self, run):
        """Of what a run ends with; more is better. The worst is a run that diverged, which has no evaluations."""
        if not run:
            return float("-inf")
        end = statistics.mean(value for _, value in run[-2:])
        return end if self.about.rises else -end
