"""Processes as torchrun starts them, and a run that is killed and resumed."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import torch
from ranks import CONTEXT, Died, Net, batch, results, run
from torch.utils.data import Dataset

CONTEXT.set_forkserver_preload(["pytest", "torch.optim", "torch.nn.parallel", "gradwire.torch"])
CODEC = "topk:density=0.05"


def as_torchrun(rank: int, world: int) -> None:
    """What frameworks look for; the process group is there already."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    os.environ.update({key: str(value) for key, value in places.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID="test", ACCELERATE_USE_CPU="true")
    torch.manual_seed(3)


def kill() -> None:
    """As the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def misfits(act: Callable[[], Any]) -> list[str]:
    """The optimizers of which a warning says that the codec does not go with them."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        act()
    texts = [str(one.message).removeprefix("gradwire: ").split() for one in log]
    return [words[0] for words in texts if words[1:3] == ["trained", "worse"]]


class Batches(Dataset[dict[str, torch.Tensor]]):
    """So many samples, the same whenever they are asked for."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        tokens, targets = batch(at, 0)
        return {"tokens": tokens[0], "labels": targets[0]}


class Judged(torch.nn.Module):
    """A model that knows its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(tokens)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def killed_and_resumed(train: Callable[..., Any], folder: str) -> tuple[list[Any], list[Any]]:
    """What ``train(rank, world, folder, kills, resumes)`` returns where it was killed and resumed, and where it was not."""
    whole = results(2, train, f"{folder}/whole", False, False)
    assert any(isinstance(one, Died) for one in run(2, train, f"{folder}/cut", True, False))
    return results(2, train, f"{folder}/cut", False, True), whole
