"""What older hooks have saved is read as before: the files in tests/data go on with the bits of the hook that wrote them.

``state-gloo-RANK.pt`` is of the engine that exchanged over gloo. It ran :func:`train` without a state.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from ranks import ddp, results
from torch import nn

import gradwire.torch

DATA = Path(__file__).parents[1] / "data"
SHAPES = {"gate": (20, 10), "inner": (16, 12), "outer": (15, 14), "bias": (9,)}
#: Momenta, factors and states of units are all kept.
RULES = {"gate": "dgc:density=0.1", "inner": "powersgd:rank=2", "outer": "sidco:density=0.1"}
SAVED, STEPS = 3, 6
AT = ("step", "scale", "lr")


class Model(nn.Module):
    """Its gradients are what they are told to be, to the bit, on any machine."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([(one * gradients[name]).sum() for name, one in self.named_parameters()]).sum()


def gradients(step: int, rank: int) -> dict[str, torch.Tensor]:
    """Whole numbers below 500, by a congruence, as no generator of torch is the same in all versions."""
    made, word = {}, 7 * step + rank + 1
    for name, shape in SHAPES.items():
        values = []
        for _ in range(torch.Size(shape).numel()):
            word = (1103515245 * word + 12345) % 2**31
            values.append((word >> 16) % 999 - 499)
        made[name] = torch.tensor(values, dtype=torch.float32).reshape(shape)
    return made


class Scaler:
    """As it was."""

    def get_scale(self) -> float:
        return 1024.0


def digest(tensors: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(name.encode() + one.cpu().numpy().tobytes() for name, one in tensors.items())).hexdigest()


def train(rank: int, world: int, states: list[Any] | None) -> dict[str, Any]:
    """The state after some steps, if none is given, and what later steps give to the optimizer and keep."""
    model = Model()
    parallel, optimizer = ddp(model), torch.optim.SGD(model.parameters(), lr=0.1)
    hook = gradwire.torch.compress(parallel, "topk:density=0.1", rules=RULES, seed=11, scaler=Scaler(), optimizer=optimizer)
    saved, means = None, []
    if states is not None:
        hook.load_state_dict(states[rank])
    first = hook.state_dict()
    for step in range(hook.step, STEPS):
        if step == SAVED and states is None:
            saved = hook.state_dict()
        model.zero_grad()
        parallel(gradients(step, rank)).backward()
        if step >= SAVED:
            means.append(digest({name: one.grad for name, one in model.named_parameters() if one.grad is not None}))
    later = hook.state_dict()
    hook.close()
    at = [first[key] for key in AT]
    return {"at": at, "saved": saved, "means": means, "later": [digest(later["residual"]), digest(later["momentum"])]}


def test_a_state_of_the_engine_over_gloo_goes_on_with_its_bits() -> None:
    old = [torch.load(DATA / f"state-gloo-{rank}.pt", weights_only=True) for rank in range(2)]
    new = results(2, train, [one["saved"] for one in old])
    assert [one["at"] for one in new] == [[one["saved"][key] for key in AT] for one in old] == [[SAVED, 1024.0, 0.1]] * 2
    assert [one["means"] for one in new] == [one["means"] for one in old]
    assert [one["later"] for one in new] == [one["later"] for one in old]
    assert len(old[0]["means"]) == STEPS - SAVED
