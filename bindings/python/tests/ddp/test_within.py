"""LocalSteps at sites of several processes, which DDP or FSDP keeps together."""

from __future__ import annotations

import copy
import io
import math
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import DEVICE, Died, Net, Raised, adamw, loss_of, parameters, results, run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import DistributedOptimizer, LocalSteps, broadcast_parameters

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None  # type: ignore[assignment]
#: FSDP2 has its place there since torch 2.6.
needs_fsdp2 = pytest.mark.skipif(fully_shard is None, reason="this version of torch has no fully_shard")
FSDP = pytest.param("fsdp", marks=needs_fsdp2)

SITES, PROCESSES = 2, 2
EVERY = 3
STEPS = 8
#: The first one is of tensors that two processes send.
RULES = {"*.bias": "none", "embed.*": "qsgd:bits=4"}
#: Codec, rules, fragments and overlap.
WAYS: list[tuple[str, dict[str, str], int, int]] = [
    ("none", {}, 1, 0),
    ("topk:density=0.05", RULES, 1, 0),
    ("powersgd:rank=1", {}, 1, 2),
    ("qsgd:bits=4", {}, 3, 1),
    ("topk:density=0.05", RULES, 2, 0),
]


class Site:
    """A process of a site, with a model and what exchanges it."""

    def __init__(self, how: str, codec: str, rules: dict[str, str], fragments: int, overlap: int, **options: Any) -> None:
        mesh = init_device_mesh(DEVICE, (dist.get_world_size() // PROCESSES, PROCESSES), mesh_dim_names=("site", "process"))
        self.model = self.called = Net()
        if how == "ddp":
            self.called = DistributedDataParallel(self.model, process_group=mesh.get_group("process"))
        elif how == "fsdp":
            fully_shard(self.model.sometimes, mesh=mesh["process"])
            fully_shard(self.model, mesh=mesh["process"])
        self.inner = adamw(self.model)
        self.between = mesh.get_group("site")
        groups = {"group": self.between, "within": mesh.get_group("process")}
        asked = {"rules": rules or None, "fragments": fragments, "overlap": overlap, "check_every": 1, "every": EVERY}
        self.steps = LocalSteps(self.model, self.inner, "nesterov", codec=codec, **{**asked, **groups, **options})

    def train(self, steps: range, rank: int) -> None:
        for step in steps:
            self.steps.zero_grad()
            loss_of(self.called, step, rank).backward()
            self.steps.step()

    def whole(self) -> bytes:
        """The bytes of all parameters, of which a process may have shards alone."""
        found = {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in self.model.named_parameters()}
        return b"".join(one.detach().cpu().numpy().tobytes() for one in found.values())


def together(rank: int, world: int, how: str, way: tuple[Any, ...]) -> tuple[bytes, int, int]:
    site = Site(how, *way)
    site.train(range(STEPS), rank)
    site.steps.synchronize()
    stats = site.steps.exchange.stats()
    return site.whole(), stats.dense_bytes, site.steps.exchanges


def alone(rank: int, world: int, way: tuple[Any, ...]) -> tuple[bytes, int, int]:
    """A site of one process, which has the batches of all."""
    codec, rules, fragments, overlap = way
    model = Net()
    optimizer = LocalSteps(
        model, adamw(model), "nesterov", EVERY, codec, rules=rules or None, fragments=fragments, overlap=overlap, check_every=1
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        for process in range(PROCESSES):
            (loss_of(model, step, rank * PROCESSES + process) / PROCESSES).backward()
        optimizer.step()
    optimizer.synchronize()
    return parameters(model), optimizer.exchange.stats().dense_bytes, optimizer.exchanges


@pytest.mark.parametrize("way", WAYS)
def test_processes_of_a_site_do_as_one_process_does(way: tuple[Any, ...]) -> None:
    """Each tensor is sent by one process of a site, with the draws and memories that it has there."""
    (bits, dense, exchanges), _ = results(SITES, alone, way)
    found = results(SITES * PROCESSES, together, "ddp", way)
    assert {one for one, _, _ in found} == {bits}
    assert {one for _, _, one in found} == {exchanges}
    for site in (found[:PROCESSES], found[PROCESSES:]):
        sent = [one for _, one, _ in site]
        assert sum(sent) == dense
        assert max(sent) < 0.8 * dense


@needs_fsdp2
@pytest.mark.parametrize("way", [WAYS[0], ("none", {}, 3, 1)])
def test_sharded_models_do_as_whole_ones_do(way: tuple[Any, ...]) -> None:
    (bits, dense, _), _ = results(SITES, alone, way)
    found = results(SITES * PROCESSES, together, "fsdp", way)
    assert {one for one, _, _ in found} == {bits}
    assert [one for _, one, _ in found] == [dense // PROCESSES] * (SITES * PROCESSES)


def sharded(rank: int, world: int) -> dict[str, Any]:
    """Of one tensor of which each process has a half: where it began, how far it went, what was kept back, where it ended."""
    site = Site("fsdp", "topk:density=0.05", {}, 1, 0)
    own = site.model.sometimes.weight.to_local()  # type: ignore[operator]
    start = own.detach().clone()
    site.train(range(EVERY - 1), rank)
    way = start - own.detach()
    site.steps.synchronize()
    sent = way - site.steps.exchange.residual("sometimes.weight").to(DEVICE)
    return {name: one.cpu().numpy() for name, one in (("start", start), ("sent", sent), ("end", own.detach()))}


@needs_fsdp2
def test_each_process_sends_its_shards() -> None:
    found = results(SITES * PROCESSES, sharded)
    for process in range(PROCESSES):
        one, other = (
            {name: torch.from_numpy(part) for name, part in found[at].items()} for at in (process, PROCESSES + process)
        )
        assert torch.equal(one["end"], other["end"])
        assert one["sent"].count_nonzero()
        mean = (one["sent"] + other["sent"]) / 2
        # One step of Nesterov's momentum from nothing.
        torch.testing.assert_close(one["end"], one["start"] - 0.7 * 1.9 * mean)


def saved(rank: int, world: int, how: str, way: tuple[Any, ...], at: int) -> tuple[bytes, bytes]:
    """With and without an end in the middle."""
    site = Site(how, *way)
    site.train(range(at), rank)
    file = io.BytesIO()
    torch.save({"model": site.model.state_dict(), "local": site.steps.state_dict()}, file)
    site.train(range(at, STEPS), rank)
    site.steps.close()
    other = Site(how, *way)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.zero_()
    file.seek(0)
    state = torch.load(file, weights_only=False)
    other.model.load_state_dict(state["model"])
    other.steps.load_state_dict(state["local"])
    other.train(range(at, STEPS), rank)
    return site.whole(), other.whole()


@pytest.mark.parametrize("how", ["ddp", FSDP])
@pytest.mark.parametrize(("way", "at"), [(WAYS[1], 3), (WAYS[1], 5), (WAYS[3], 4)])
def test_it_goes_on_with_the_same_bits(how: str, way: tuple[Any, ...], at: int) -> None:
    for whole, resumed in results(SITES * PROCESSES, saved, how, way, at):
        assert whole == resumed


def fails(rank: int, world: int) -> None:
    """A tensor that one process of each site exchanges diverges at the second one. Kept parameters stay as they were."""
    site = Site("ddp", "topk:density=0.05", {}, 1, 0)
    site.train(range(2 * EVERY - 1), rank)
    before = [start.detach().clone() for start, _ in site.steps._kept.values()]
    if rank // PROCESSES == 1:
        with torch.no_grad():
            site.model.head.bias[3] = math.nan
    try:
        site.steps.synchronize()
    finally:
        for kept, (start, _) in zip(before, site.steps._kept.values(), strict=True):
            assert torch.equal(kept, start)
            assert start.grad is None


def test_all_processes_are_told_that_a_part_failed() -> None:
    told = run(SITES * PROCESSES, fails)
    for one in told:
        assert isinstance(one, Raised), one
        assert one.name == "ExchangeError", one
    assert sum("was not finite" in one.text for one in told) == SITES
    assert sum("another process of this site failed" in one.text for one in told) == SITES


def apart(rank: int, world: int) -> None:
    """Those of the second site train alone."""
    site = Site("none" if rank >= PROCESSES else "ddp", "none", {}, 1, 0)
    site.train(range(EVERY), rank)


def test_a_site_whose_processes_train_apart_is_refused_everywhere() -> None:
    told = run(SITES * PROCESSES, apart)
    for one in told:
        assert isinstance(one, Raised), one
        assert "the processes of this site trained apart: wrap the model in DDP" in one.text
    assert [one.name for one in told] == ["PeerFailedError"] * PROCESSES + ["ReplicasDifferError"] * PROCESSES


def behind(rank: int, world: int) -> None:
    """The second process of each site loads what it saved an exchange before."""
    site = Site("ddp", "none", {}, 1, 0)
    states = [copy.deepcopy(site.steps.state_dict())]
    site.train(range(EVERY), rank)
    states.append(site.steps.state_dict())
    site.steps.load_state_dict(states[1 - rank % PROCESSES])
    site.train(range(EVERY), rank)


def test_states_of_different_exchanges_are_refused() -> None:
    for one in run(SITES * PROCESSES, behind):
        assert isinstance(one, Raised), one
        assert "the processes of this site have made 0 to 1 exchanges" in one.text


def dies(rank: int, world: int) -> None:
    site = Site("none", "none", {}, 1, 0, timeout=20)
    if rank == 3:
        os._exit(1)
    for _ in range(EVERY):
        site.steps.step()


def test_a_process_that_died_is_noticed_at_its_site_and_at_others() -> None:
    *others, dead = run(SITES * PROCESSES, dies)
    assert isinstance(dead, Died)
    for one in others:
        assert isinstance(one, Raised), one
        assert one.name in ("PeerLostError", "PeerFailedError"), one
        assert one.seconds < 15
    assert "a process of this site is lost" in others[2].text


def refused(rank: int, world: int, what: str) -> None:
    if what == "rule":
        Site("ddp", "none", {"nowhere.*": "none"}, 1, 0)
    elif what == "auto":
        Site("ddp", "auto", {}, 1, 0)
    elif what == "fragments":
        Site("ddp", "none", {}, 9, 0, every=9)
    elif what == "group":
        Site("ddp", "none", {}, 1, 0, group=None)
    elif what == "same":
        Site("ddp", "none", {}, 1, 0, group=dist.group.WORLD)
    elif what == "fsdp":
        Site("fsdp", "none", {}, 1, 0, within=None)
    elif what == "fsdp1":
        model = FullyShardedDataParallel(Net(), use_orig_params=True, device_id=torch.device(DEVICE))
        LocalSteps(model, adamw(model))
    elif what == "state":
        steps = Site("ddp", "none", {}, 1, 0).steps
        every: list[Any] = [None] * world
        dist.all_gather_object(every, steps.state_dict())
        steps.load_state_dict(every[rank - 1])
    elif what == "wire":
        Site("ddp", "none", {"embed.*": "qsgd:bits=4"}, 1, 0, wire="bf16")
    else:
        model = Net()
        fully_shard(model)
        if what == "optimizer":
            DistributedOptimizer(adamw(model), model.named_parameters(), "none")
        else:
            broadcast_parameters(model)


@pytest.mark.parametrize(
    ("what", "name", "told"),
    [
        ("rule", "ValueError", "rules: 'nowhere.*' is the first to fit no parameter"),
        ("auto", "ValueError", "codec='auto': processes of a site would choose each for itself"),
        ("fragments", "ValueError", "fragments=9: process 1 of 2 has no tensor in one of them"),
        ("group", "TypeError", "group=None: within= goes together with sites=, or with group="),
        ("same", "ValueError", "two process groups that have this process in common, and no other"),
        pytest.param(
            "fsdp", "ValueError", "embed.weight: it is split over processes, as FSDP does; pass within=", marks=needs_fsdp2
        ),
        ("fsdp1", "ValueError", "expected torch's fully_shard"),
        ("state", "ValueError", "state: it lacks embed.weight: each process of a site loads what it saved itself"),
        ("wire", "ValueError", "wire='bf16': it does not go together with within= and rules="),
        pytest.param("optimizer", "ValueError", "embed.weight: it is split over processes, as FSDP does", marks=needs_fsdp2),
        pytest.param("broadcast", "ValueError", "pass group=, those that have the same part of it", marks=needs_fsdp2),
    ],
)
def test_refusals_say_why(what: str, name: str, told: str) -> None:
    for one in run(SITES * PROCESSES, refused, what)[1::2]:
        assert isinstance(one, Raised), one
        assert one.name == name, one
        assert told in one.text, one.text


def untouched(rank: int, world: int) -> bytes:
    return parameters(Net())


def begun(rank: int, world: int) -> bytes:
    """Sites begin with different shards, and get those of the first."""
    site = Site("fsdp", "none", {}, 1, 0)
    with torch.no_grad():
        for parameter in site.model.parameters():
            parameter.add_(rank // PROCESSES)
    broadcast_parameters(site.model, group=site.between)
    return site.whole()


@needs_fsdp2
def test_sharded_parameters_are_broadcast_between_sites() -> None:
    (own,) = results(1, untouched)
    assert results(SITES * PROCESSES, begun) == [own] * (SITES * PROCESSES)


def before(rank: int, world: int, how: str, way: tuple[Any, ...]) -> bytes:
    """States behind each of two exchanges."""
    site = Site(how, *way)
    states = []
    for exchange in range(2):
        site.train(range(exchange * EVERY, (exchange + 1) * EVERY), rank)
        states.append(copy.deepcopy(site.steps.state_dict()))
    return packed(states)


def after(rank: int, world: int, how: str, way: tuple[Any, ...], brought: list[bytes | None], at: list[int]) -> dict[str, Any]:
    """Each process brings what it saved after an exchange, and begins with other parameters."""
    site, own = Site(how, *way), brought[rank]
    with torch.no_grad():
        for parameter in site.model.parameters():
            parameter.add_(rank // PROCESSES)
    state = None if own is None else torch.load(io.BytesIO(own), weights_only=False)[at[rank]]
    made = site.steps.rejoin(state)
    found = {"made": made, "begins": site.whole(), "has inner": bool(site.inner.state)}
    site.train(range(2 * EVERY), rank)
    return found | {"ends": site.whole(), "exchanges": site.steps.exchanges}


def packed(found: Any) -> bytes:
    file = io.BytesIO()
    torch.save(found, file)
    return file.getvalue()


@pytest.mark.parametrize("how", ["ddp", FSDP])
@pytest.mark.parametrize("way", [WAYS[1], ("qsgd:bits=4", {}, 1, 0)])
def test_sites_go_on_after_others_were_lost_or_came(how: str, way: tuple[Any, ...]) -> None:
    """Of three sites the first is lost, and one is new. Of the second one, a process was killed before it could save."""
    states = results(3 * PROCESSES, before, how, way)
    whole = results(3 * PROCESSES, after, how, way, states, [1] * 6)
    found = results(3 * PROCESSES, after, how, way, [*states[2:], None, None], [0, 1, 1, 1, 1, 1])
    assert {(one["made"], one["begins"]) for one in found} == {(2, whole[0]["begins"])}
    assert len({one["ends"] for one in found}) == 1
    assert {one["exchanges"] for one in found} == {4}
    assert [one["has inner"] for one in found] == [False, False, True, True, False, False]
    assert [one["has inner"] for one in whole] == [True] * 6


def test_sites_without_states_of_one_exchange_are_refused() -> None:
    states = results(SITES * PROCESSES, before, "ddp", WAYS[0])
    for one in run(SITES * PROCESSES, after, "ddp", WAYS[0], states, [0, 1, 1, 0]):
        assert isinstance(one, Raised), one
        assert one.text == "no site has states that all of its processes saved after the same exchange"
    for one in run(SITES * PROCESSES, after, "ddp", WAYS[0], [*states[:2], states[3], states[2]], [1] * 4):
        assert isinstance(one, Raised), one
        assert one.text.startswith("rank 1: process 0 of its site: state: it lacks "), one.text
