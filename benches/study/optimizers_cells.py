"""The runs of optimizers.py: which methods train what, at which rates and with which seeds."""

import os
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True)
class Method:
    """What is exchanged, and after how many batches of each worker."""

    optimizer: str
    codec: str
    local_steps: int = 1
    more: tuple = ()
    fragments: int = 1

    @property
    def batches(self):
        """Of each worker between two exchanges, which the trainer calls a step."""
        return self.local_steps // self.fragments

    def command(self):
        """What `trainer train` is asked for."""
        local = ("--local-steps", self.local_steps) if self.local_steps > 1 else ()
        fragments = ("--fragments", self.fragments) if self.fragments > 1 else ()
        return ("--optimizer", self.optimizer, "--codec", self.codec, *local, *fragments, *self.more)


# DiLoCo's outer step.
NESTEROV = ("--outer-lr", 0.7, "--outer-momentum", 0.9)

# The first is what all others are compared with. Of updates and local steps, densities that make 50 and 100 times fewer bytes
# than an f32 ring of four, counted.
METHODS = {
    "dense": Method("adamw", "none"),
    "muon": Method("muon", "none"),
    "muon-local4-topk-7%": Method("muon", "topk:density=0.07,values=q4", 4),
    "muon-local4-topk-18%": Method("muon", "topk:density=0.18,values=q4", 4),
    "muon-local8-topk-18%": Method("muon", "topk:density=0.18,values=q4", 8),
    "local2-topk-7%": Method("adamw", "topk:density=0.07,values=q4", 2),
    "local4-topk-7%": Method("adamw", "topk:density=0.07,values=q4", 4),
    "local4-topk-18%": Method("adamw", "topk:density=0.18,values=q4", 4),
    "local8-topk-18%": Method("adamw", "topk:density=0.18,values=q4", 8),
    "local4-qsgd": Method("adamw", "qsgd:bits=2,rounding=nearest", 4),
    "local4-efsign": Method("adamw", "efsign", 4),
    "local8-dense": Method("adamw", "none", 8),
    # The exchange is under way during the next steps.
    "local4-topk-18%-delayed": Method("adamw", "topk:density=0.18,values=q4", 4, ("--delayed",)),
    "local8-dense-delayed": Method("adamw", "none", 8, ("--delayed",)),
    "local8-nesterov": Method("adamw", "none", 8, NESTEROV),
    "local30-nesterov": Method("adamw", "none", 30, NESTEROV),
    # A third of the model after every ten batches; then the same in 4 bits, on its way during the next ten.
    "local30-fragments": Method("adamw", "none", 30, NESTEROV, 3),
    "local30-streaming": Method("adamw", "qsgd:bits=4", 30, ("--delayed", *NESTEROV), 3),
    "local30-sparseloco": Method("adamw", "topk:density=0.0156,chunk=4096,values=q2,decay=0.95", 30),
    # A quarter of the model after every second batch.
    "local8-topk-18%-fragments": Method("adamw", "topk:density=0.18,values=q4", 8, fragments=4),
    "local8-sparseloco": Method("adamw", "topk:density=0.0156,chunk=4096,values=q2,decay=0.95", 8),
    "updates-topk-3.2%": Method("adamw-updates", "topk:density=0.032,values=q4"),
    "updates-topk-1.35%": Method("adamw-updates", "topk:density=0.0135,values=q4"),
    "updates-powersgd": Method("adamw-updates", "powersgd:rank=1"),
    "gradients-topk-10%": Method("adamw", "topk:density=0.1,values=q4"),
    "gradients-topk-1%": Method("adamw", "topk:density=0.01,values=q4"),
    "gradients-topk-0.1%": Method("adamw", "topk:density=0.001,values=q4"),
    "gradients-qsgd": Method("adamw", "qsgd:bits=4"),
    "gradients-powersgd": Method("adamw", "powersgd:rank=4"),
    "gradients-efsign": Method("adamw", "efsign"),
}


@dataclass(frozen=True)
class Task:
    """What is trained, and for how long."""

    settings: tuple
    # Batches of all workers.
    batches: int
    # Factors of 2, the middle first, so that an unfinished study has the best of each method early.
    rates: tuple
    evaluations: int
    workers: int = 4
    # Those that are trained; all, if none are named.
    methods: tuple = ()
    # A data set of GRADWIRE_DATA, which is judged by accuracy; a quick run takes the digits that ship.
    images: str = ""

    def command(self, batches, *, is_quick=False):
        """As people use AdamW: warm-up and cosine, clipped at 1. The trainer counts exchanges."""
        steps = max(2, (QUICK_BATCHES if is_quick else self.batches) // batches)
        schedule = ("--schedule", "cosine", "--warmup", steps // 10, "--clip", 1, "--beta2", 0.95)
        every = steps if is_quick else max(1, steps // self.evaluations)
        return (*self._data(is_quick), *self.settings, *schedule, "--steps", steps, "--eval-every", every, "--checkpoint-every", every)

    def _data(self, is_quick):
        if not self.images:
            return ("--data", "tiny-shakespeare")
        if is_quick:
            return ("--data", "optdigits")
        return ("--data", self.images, "--data-dir", Path(os.environ["GRADWIRE_DATA"]) / "data" / self.images)


QUICK_BATCHES = 16
TASKS = {
    "screen": Task(
        ("--model", "gpt", "--batch", 64),
        batches=600,
        rates=(4e-3, 2e-3, 8e-3, 1e-3, 16e-3, 5e-4, 32e-3),
        evaluations=4,
    ),
    # As many tokens of each worker and batch, half as many batches.
    "sixteen": Task(
        ("--model", "gpt", "--batch", 256),
        batches=300,
        rates=(16e-3, 8e-3, 32e-3),
        evaluations=4,
        workers=16,
        methods=("dense", "muon", "local4-topk-7%", "muon-local4-topk-7%"),
    ),
    # Five passes over 10,000 images. Muon has no matrix there between the first and the last layer.
    "resnet20": Task(
        ("--model", "resnet20", "--batch", 128),
        batches=390,
        rates=(4e-3, 8e-3, 2e-3),
        evaluations=5,
        methods=("dense", "local4-topk-7%", "local4-topk-18%", "gradients-qsgd", "gradients-topk-1%"),
        images="cifar-10",
    ),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    task: str
    method: str
    rate: float
    seed: int

    @property
    def name(self):
        """Of its folder."""
        return f"{self.task}-{self.method}-lr{self.rate:g}-s{self.seed}"


# Rates are chosen with this seed, which is not one of those that are reported.
TUNING_SEED = 0
SEEDS = range(11, 19)
# Methods that are trained with the seeds that are reported, at their best rate; on images, those with three seeds.
FINALISTS = ["dense", "local4-topk-7%", "local4-topk-18%", "muon", "muon-local4-topk-7%", "muon-local4-topk-18%"]
FINALISTS_OF_IMAGES, SEEDS_OF_IMAGES = ["dense", "local4-topk-7%"], SEEDS[:3]
