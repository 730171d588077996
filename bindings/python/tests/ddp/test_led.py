"""LocalSteps at sites that come and go, and have several processes each, which DDP keeps together."""

from __future__ import annotations

import copy
import io
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import DEVICE, Net, Raised, adamw, broken, loss_of, parameters, results, run
from torch.distributed import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import LocalSteps, Sites

SITES, PROCESSES = 2, 2
EVERY = 3
STEPS = 8


class Site:
    """A process of a site."""

    def __init__(self, port: int, rank: int, *, apart: bool = False, quorum: int = SITES, **options: Any) -> None:
        mesh = init_device_mesh(DEVICE, (dist.get_world_size() // PROCESSES, PROCESSES), mesh_dim_names=("site", "process"))
        within = mesh.get_group("process")
        self.store = TCPStore("127.0.0.1", port, wait_for_workers=False)
        sites = Sites(self.store, f"site-{rank // PROCESSES}", quorum=quorum, patience=0.5)
        self.model = self.called = Net()
        if not apart:
            self.called = DistributedDataParallel(self.model, process_group=within)
        self.inner = adamw(self.model)
        options = {"check_every": 1, "timeout": 20, "within": within, "sites": sites} | options
        self.steps = LocalSteps(self.model, self.inner, "nesterov", EVERY, **options)

    def come(self, rank: int, state: Any = None) -> int:
        """Sites in the order of their numbers."""
        if rank % PROCESSES == 0:
            ends = time.monotonic() + 60
            while self.store.add("gradwire/sites/here/1", 0) < rank // PROCESSES and time.monotonic() < ends:
                time.sleep(0.02)
        return self.steps.rejoin(state)

    def train(self, steps: range, rank: int) -> None:
        for step in steps:
            self.steps.zero_grad()
            loss_of(self.called, step, rank).backward()
            self.steps.step()


def at_sites(rank: int, world: int, port: int, options: dict[str, Any]) -> tuple[bytes, bytes, int, int]:
    site = Site(port, rank, **options)
    assert site.come(rank) == 0
    site.train(range(STEPS), rank)
    before = parameters(site.model)
    site.steps.synchronize()
    site.steps.synchronize()
    found = before, parameters(site.model), site.steps.exchanges, site.steps.world
    site.steps.close()
    return found


def in_a_group(rank: int, world: int, options: dict[str, Any]) -> tuple[bytes, bytes, int, int]:
    """Sites of one process, which has the batches of all."""
    model = Net()
    optimizer = LocalSteps(model, adamw(model), "nesterov", EVERY, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for process in range(PROCESSES):
            (loss_of(model, step, rank * PROCESSES + process) / PROCESSES).backward()
        optimizer.step()
    before = parameters(model)
    optimizer.synchronize()
    return before, parameters(model), optimizer.exchanges, optimizer.world


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "none"},
        {"codec": "topk:density=0.05", "rules": {"head.*": "none"}},
        {"codec": "qsgd:bits=4", "fragments": 3, "overlap": 1},
        {"codec": "powersgd:rank=1", "overlap": 2},
    ],
)
def test_processes_of_a_site_do_as_one_process_does(port: int, options: dict[str, Any]) -> None:
    found = results(SITES * PROCESSES, at_sites, port, options)
    for site, expected in enumerate(results(SITES, in_a_group, options)):
        assert found[site * PROCESSES : (site + 1) * PROCESSES] == [expected] * PROCESSES


def late(rank: int, world: int, port: int) -> dict[str, Any]:
    """The second site sleeps in its second exchange, and the first one goes on alone."""
    site = Site(port, rank, quorum=1, codec="topk:density=0.05")
    site.come(rank)
    worlds = []
    for step in range(100 * EVERY):
        if step == EVERY + 1 and rank // PROCESSES == 1:
            time.sleep(2)
        site.train(range(step, step + 1), rank)
        worlds.append((site.steps.exchanges, site.steps.world))
        if site.steps.exchanges >= 12 and site.steps._taken == 0:
            break
        time.sleep(0.1)
    found = {
        "parameters": parameters(site.model),
        "worlds": worlds,
        "steps": int(site.inner.state[site.model.head.bias]["step"]),
    }
    site.steps.close()
    return found


def test_a_site_that_is_late_comes_in_with_all_of_its_processes(port: int) -> None:
    found = results(SITES * PROCESSES, late, port)
    assert len({one["parameters"] for one in found}) == 1
    for first, second in (found[:PROCESSES], found[PROCESSES:]):
        assert first["worlds"] == second["worlds"]
        assert first["steps"] == second["steps"]
    assert {world for _, world in found[0]["worlds"]} == {1, 2} or found[0]["worlds"][-1][1] == 2
    # It missed some exchanges.
    assert found[2]["steps"] < found[0]["steps"]


def mixed(rank: int, world: int, port: int) -> bytes:
    """The third process is a site of its own."""
    within = dist.new_group([0, 1])
    store = TCPStore("127.0.0.1", port, wait_for_workers=False)
    sites = Sites(store, f"site-{rank // 2}", quorum=2, patience=5)
    model = called = Net()
    if rank < 2:
        called = DistributedDataParallel(model, process_group=within)
    group = within if rank < 2 else None
    optimizer = LocalSteps(model, adamw(model), "average", EVERY, within=group, sites=sites, check_every=1)
    optimizer.rejoin(None)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(called, step, rank).backward()
        optimizer.step()
    optimizer.synchronize()
    optimizer.close()
    return parameters(model)


def test_sites_may_have_different_numbers_of_processes(port: int) -> None:
    assert len(set(results(3, mixed, port))) == 1


def saved(rank: int, world: int, port: int, brought: list[bytes | None]) -> dict[str, Any]:
    """The first process of each site brings a state, and has other parameters."""
    site = Site(port, rank, codec="topk:density=0.05")
    state = None if not brought or (own := brought[rank]) is None else torch.load(io.BytesIO(own), weights_only=True)
    made = site.come(rank, state)
    begins = parameters(site.model), made, copy.deepcopy(site.inner.state_dict())
    site.train(range(EVERY), rank)
    file = io.BytesIO()
    torch.save(site.steps.state_dict(), file)
    found = {"begins": begins[:2], "inner": begins[2]["state"], "ends": parameters(site.model), "state": file.getvalue()}
    site.steps.close()
    return found | {"inner": [float(one["step"]) for one in found["inner"].values()]}


def test_a_run_that_is_started_again_goes_on_at_all_processes(port: int) -> None:
    first = results(SITES * PROCESSES, saved, port, [])
    states = [one["state"] if at % PROCESSES == 0 else None for at, one in enumerate(first)]
    other = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    second = results(SITES * PROCESSES, saved, other.port, states)
    assert {one["begins"] for one in second} == {(first[0]["ends"], 1)}
    # Followers have the moments of their leader, and no state of their own.
    assert all(one["inner"] and set(one["inner"]) == {float(EVERY)} for one in second)
    assert len({one["ends"] for one in second}) == 1


def goes_wrong(rank: int, world: int, port: int, what: str) -> bytes:
    site = Site(port, rank, quorum=1, apart=what == "apart" and rank >= PROCESSES)
    site.come(rank)
    if what == "leader" and rank == PROCESSES:
        site.steps._at_sites.agreed = lambda **_: broken()  # type: ignore[union-attr, method-assign]
    site.train(range(3 * EVERY), rank)
    site.steps.close()
    return parameters(site.model)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("apart", ["the processes of this site trained apart"] * 2),
        ("leader", ["no room", "the first process of this site, which exchanges for it, has failed"]),
    ],
)
def test_a_site_that_fails_says_why_and_others_go_on(port: int, what: str, says: list[str]) -> None:
    *others, leader, follower = run(SITES * PROCESSES, goes_wrong, port, what)
    for one, text in zip((leader, follower), says, strict=True):
        assert isinstance(one, Raised), one
        assert text in one.text, one
    assert not isinstance(others[0], Raised), others[0]
    assert others[0] == others[1]


def refused(rank: int, world: int, port: int, what: str) -> None:
    site = Site(port, rank)
    if what == "exchange":
        assert site.steps.exchange.stats() if rank == 0 else site.steps.exchange
    else:
        site.steps.load_state_dict(site.steps.state_dict())


@pytest.mark.parametrize(
    ("what", "told"),
    [("exchange", "of the processes of a site with sites=, the first one has it"), ("load", "pass the state to rejoin()")],
)
def test_what_followers_do_not_have_is_said(port: int, what: str, told: str) -> None:
    one = run(PROCESSES, refused, port, what)[1]
    assert isinstance(one, Raised), one
    assert told in one.text
