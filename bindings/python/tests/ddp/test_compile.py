"""A compiled model trains as it does without."""

from __future__ import annotations

import torch
from ranks import Net, ddp, loss_of, parameters, results

import gradwire.torch

STEPS = 8


def compiled(rank: int, world: int, backend: str | None) -> bytes:
    model = Net()
    # The compiler refuses buckets that are smaller than the first one.
    parallel = ddp(model, bucket_cap_mb=1)
    hook = gradwire.torch.compress(parallel, "topk:density=0.05", check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called = parallel if backend is None else torch.compile(parallel, backend=backend)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(called, step, rank).backward()
        optimizer.step()
    counted = hook.stats()
    assert (counted.steps, counted.hash_checks, counted.skipped_steps) == (STEPS, STEPS, 0)
    return parameters(model)


def test_a_compiled_model_is_exchanged_like_any_other() -> None:
    """Of this backend operations are those of the model, so bits are the same, too."""
    plain, eager = results(2, compiled, None), results(2, compiled, "eager")
    assert eager == plain
    first, second = results(2, compiled, "aot_eager")
    assert first == second
