"""DistributedOptimizer with models that FSDP2 has split within a site: gradients of shards are exchanged between sites."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from ranks import DEVICE, Net, Raised, adamw, loss_of, parameters, results, run
from torch.distributed.device_mesh import init_device_mesh

from gradwire.torch import DistributedOptimizer

fully_shard: Any = getattr(torch.distributed.fsdp, "fully_shard", None)
pytestmark = pytest.mark.skipif(fully_shard is None, reason="FSDP2 has its place there since torch 2.6")

SITES, PROCESSES = 2, 2
STEPS = 5


class Split:
    """One process of a site."""

    def __init__(self, codec: str, **options: Any) -> None:
        mesh = init_device_mesh(DEVICE, (SITES, PROCESSES), mesh_dim_names=("site", "process"))
        self.model = Net()
        fully_shard(self.model.sometimes, mesh=mesh["process"])
        fully_shard(self.model, mesh=mesh["process"])
        options = {"group": mesh.get_group("site"), "check_every": 1, "bucket_cap_mb": 0.02} | options
        self.optimizer = DistributedOptimizer(adamw(self.model), self.model.named_parameters(), codec, **options)

    def train(self, steps: range, rank: int, skips: bool = False) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            loss_of(self.model, step, rank, skip=skips and skipped(step, rank // PROCESSES)).backward()
            self.optimizer.step()

    def whole(self) -> bytes:
        found = [one.full_tensor() for one in self.model.parameters()]  # type: ignore[operator]
        return b"".join(one.detach().cpu().numpy().tobytes() for one in found)


def skipped(step: int, site: int) -> bool:
    """In the first step one site uses no parameter of a layer, and in the last one neither does."""
    return (step == 0 and site == 0) or step == STEPS - 1


def split(rank: int, world: int, codec: str, skips: bool) -> bytes:
    site = Split(codec)
    site.train(range(STEPS), rank, skips)
    stats = site.optimizer.exchange.stats()
    assert (stats.steps, stats.hash_checks) == (STEPS, STEPS)
    return site.whole()


def alone(rank: int, world: int, codec: str, skips: bool) -> bytes:
    """A site of one process, which has the batches of all."""
    model = Net()
    options = {"backward_passes_per_step": PROCESSES, "check_every": 1}
    optimizer = DistributedOptimizer(adamw(model), model.named_parameters(), codec, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for process in range(PROCESSES):
            is_skipped = skips and skipped(step, rank)
            (loss_of(model, step, rank * PROCESSES + process, skip=is_skipped) / PROCESSES).backward()
        optimizer.step()
    return parameters(model)


@pytest.mark.parametrize("skips", [False, True])
def test_shards_are_exchanged_as_whole_tensors_are(skips: bool) -> None:
    bits, _ = results(SITES, alone, "none", skips)
    assert results(SITES * PROCESSES, split, "none", skips) == [bits] * (SITES * PROCESSES)


@pytest.mark.parametrize("codec", ["topk:density=0.05", "qsgd:bits=4", "powersgd:rank=1"])
def test_sites_end_alike(codec: str) -> None:
    found = results(SITES * PROCESSES, split, codec, True)
    assert len(set(found)) == 1
    assert found[0] != results(1, untrained)[0]


def untrained(rank: int, world: int) -> bytes:
    return parameters(Net())


def exchanged(rank: int, world: int) -> dict[str, Any]:
    """One shard: what was sent of its gradient, and the mean behind backward. Then gradients that are thrown away."""
    whole = Net()
    for process in range(PROCESSES):
        (loss_of(whole, 0, rank // PROCESSES * PROCESSES + process) / PROCESSES).backward()
    own = whole.inner.weight.grad.chunk(PROCESSES)[rank % PROCESSES]  # type: ignore[union-attr]
    site = Split("topk:density=0.05")
    loss_of(site.model, 0, rank).backward()
    mean = site.model.inner.weight.grad.to_local().clone()  # type: ignore[union-attr]
    norm = torch.nn.utils.clip_grad_norm_(site.model.parameters(), 1e9).full_tensor()  # type: ignore[attr-defined]
    kept = site.optimizer.exchange.residual("inner.weight").to(DEVICE)
    site.train(range(1, 2), rank)
    assert site.optimizer.exchange.step == 2
    return {name: one.cpu().numpy() for name, one in (("sent", own - kept), ("mean", mean), ("norm", norm))}


def test_gradients_are_means_when_backward_returns() -> None:
    found = results(SITES * PROCESSES, exchanged)
    for process in range(PROCESSES):
        one, other = found[process], found[PROCESSES + process]
        assert (one["mean"] == (one["sent"] + other["sent"]) / 2).all()
        assert (one["mean"] != 0).any()
    assert len({float(one["norm"]) for one in found}) == 1


def accumulated(rank: int, world: int) -> tuple[bytes, int]:
    site = Split("qsgd:bits=4")
    for step in range(STEPS):
        for part in range(2):
            site.model.set_requires_gradient_sync(part == 1)  # type: ignore[operator]
            loss_of(site.model, 2 * step + part, rank).backward()
        site.optimizer.step()
        site.optimizer.zero_grad()
    return site.whole(), site.optimizer.exchange.step


def test_gradients_that_are_added_up_are_exchanged_once() -> None:
    found = results(SITES * PROCESSES, accumulated)
    assert {steps for _, steps in found} == {STEPS}
    assert len({bits for bits, _ in found}) == 1


def resumed(rank: int, world: int) -> list[bytes]:
    ends, state = [], None
    for begin in (0, 2):
        site = Split("topk:density=0.05")
        if state is not None:
            site.model.load_state_dict(state["model"])
            site.optimizer.load_state_dict(state["optimizer"])
        site.train(range(begin, 2), rank)
        if state is None:
            state = copy.deepcopy({"model": site.model.state_dict(), "optimizer": site.optimizer.state_dict()})
        site.train(range(2, STEPS), rank)
        ends.append(site.whole())
        site.optimizer.close()
    return ends


def test_it_goes_on_with_the_same_bits() -> None:
    for whole, other in results(SITES * PROCESSES, resumed):
        assert whole == other


def refused(rank: int, world: int, group: str) -> None:
    wrong = {"none": None, "all": dist.group.WORLD}
    Split("none", group=wrong[group])


@pytest.mark.parametrize("group", ["none", "all"])
def test_other_groups_are_refused(group: str) -> None:
    for one in run(SITES * PROCESSES, refused, group):
        assert isinstance(one, Raised), one
        assert "embed.weight: it is split over processes, as FSDP does; pass group=" in one.text
