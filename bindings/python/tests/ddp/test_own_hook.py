"""A codec written with numpy in the hook of DDP, at two ranks with gloo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
import own_codecs  # registers them, also in the process of each rank
from ranks import Net, Raised, ddp, loss_of, results, run
from test_means import all_recorded, check, spelled

import gradwire
import gradwire.torch

SPELLINGS = ["x:blocks:block=5", "x:first:density=0.2", "x:first:density=1"]


def recorded(rank: int, world: int) -> dict[str, dict[str, Any]]:
    return all_recorded(rank, world, SPELLINGS, {})


def test_the_hook_gives_the_means_that_numpy_gives() -> None:
    found = results(2, recorded)
    for spelling in SPELLINGS:
        codec = spelled(spelling)
        check(codec, [one[spelling] for one in found])


class Late(own_codecs.Blocks):
    """Raises in the third step, at the rank in its key."""

    def __init__(self, rank: str) -> None:
        super().__init__("8")
        self.rank = int(rank)

    def encode(self, values: np.ndarray, source: gradwire.UnitSource) -> bytes:
        import torch.distributed as dist

        if source.step == 2 and dist.get_rank() == self.rank:
            raise ValueError(f"only rank {self.rank} has this")
        return super().encode(values, source)


gradwire.register("late", Late, number=0xF5, keys="rank=9")


def trained(rank: int, world: int, codec: str, rules: dict[str, str] | None) -> dict[str, Any]:
    import torch

    model = Net()
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, codec, rules=rules, timeout=60, check_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(parallel, step % 4, rank)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    stats = hook.stats()
    hook.close()
    return {"losses": losses, "checks": stats.hash_checks, "ratio": stats.ratio}


def test_training_converges_with_fewer_bytes_and_replicas_stay_equal() -> None:
    for one in results(2, trained, "x:blocks:block=32", {"*.bias": "none", "embed.*": "x:first:density=0.5"}):
        assert one["losses"][-1] < one["losses"][0] / 2, one["losses"]
        assert one["checks"] >= 39, one
        assert one["ratio"] > 2, one


def test_an_exception_in_the_codec_ends_the_step_at_every_rank_with_its_text() -> None:
    for one in run(2, trained, "x:first:density=1,most=0.000001", None):
        assert isinstance(one, Raised), one
        assert "more than 1e-06" in one.trace, one.trace


def test_the_other_ranks_read_what_a_codec_raised() -> None:
    for one, name in zip(run(2, trained, "x:late:rank=1", None), ["PeerFailedError", "EncodeError"], strict=True):
        assert isinstance(one, Raised), one
        assert one.name == name, one
        assert one.text.endswith("ValueError: only rank 1 has this"), one.text
