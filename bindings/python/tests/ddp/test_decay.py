"""`decay=` of a spelling: what a hook keeps counts less after each step that holds."""

from __future__ import annotations

import pytest
import torch
from ranks import Net, ddp, loss_of, results

import gradwire.torch

NAMES = ("inner.weight", "head.weight")


def kept(rank: int, world: int, codec: str, discards: bool) -> list[bytes]:
    """Of two tensors after one step, or after a second one that is thrown away. The second tensor has a rule of its own."""
    model = Net()
    parallel = ddp(model)
    rules = {"head.*": "topk:density=0.05"}
    hook = gradwire.torch.compress(parallel, codec, rules=rules, discardable=True)
    for step in range(2 if discards else 1):
        model.zero_grad()
        loss_of(parallel, step, rank).backward()
    if discards:
        hook.discard()
    residuals = [hook.residual(name).clone() for name in NAMES]
    hook.close()
    assert all(residual.count_nonzero() for residual in residuals)
    return [residual.cpu().numpy().tobytes() for residual in residuals]


def halved(values: bytes) -> bytes:
    halves = torch.frombuffer(bytearray(values), dtype=torch.float32) * 0.5
    return halves.cpu().numpy().tobytes()


@pytest.mark.parametrize("codec", ["topk:density=0.05", "efsign", "dgc:density=0.05", "powersgd:rank=2"])
def test_what_is_kept_decays_once_a_step_where_the_spelling_says_so(codec: str) -> None:
    joint = ":" if ":" not in codec else ","
    plain, decayed = results(2, kept, codec, False), results(2, kept, f"{codec}{joint}decay=0.5", False)
    assert decayed == [[halved(inner), head] for inner, head in plain]
    assert results(2, kept, f"{codec}{joint}decay=0.5", True) == decayed
