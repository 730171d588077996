"""However many threads encode and decode, the bits are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import ddp, normal, parameters, results

import gradwire.torch
from gradwire.torch._options import own_threads


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def train(rank: int, world: int, codec: str, threads: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.Tanh(), torch.nn.Linear(700, 300))
    parallel = ddp(model, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = _threads()
    hook = gradwire.torch.compress(parallel, codec, threads=threads, check_every=1)
    own = _threads() - before
    for step in range(4):
        inputs = normal(10 * step + rank, 4, 700)
        optimizer.zero_grad()
        parallel(inputs).square().mean().backward()
        optimizer.step()
    state = hook.state_dict()["residual"]
    hook.close()
    residuals = b"".join(one.cpu().numpy().tobytes() for one in state.values())
    return {"bits": parameters(model) + residuals, "own": own, "left": _threads() - before}


@pytest.mark.parametrize("codec", ["topk:density=0.01,values=q4", "qsgd:bits=4", "bf16", "dgc:density=0.01", "none"])
def test_bits_do_not_depend_on_the_number_of_threads(codec: str) -> None:
    one, five = results(2, train, codec, 1), results(2, train, codec, 5)
    assert len({found["bits"] for found in (*one, *five)} - {one[0]["bits"], one[1]["bits"]}) == 0
    assert [found["bits"] for found in one] == [found["bits"] for found in five]
    # Those that encode and decode, and that of the sockets.
    assert [(found["own"], found["left"]) for found in (*one, *five)] == [(2, 0)] * 2 + [(6, 0)] * 2


@pytest.mark.parametrize(
    ("cores", "ranks", "computing", "device", "threads"),
    [(2, "2", 1, "cpu", 1), (16, "4", 1, "cpu", 3), (64, "8", 1, "cuda", 4), (8, None, 8, "cpu", 1), (8, "x", 2, "cpu", 4)],
)
def test_threads_are_the_cores_that_are_left(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: str | None, computing: int, device: str, threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr("torch.get_num_threads", lambda: computing)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks or "") if ranks else monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert own_threads(torch.device(device)) == threads
