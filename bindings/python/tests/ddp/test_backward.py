"""However PyTorch runs backward, a step ends when its last bucket is there, and a failure is raised by that backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import break_engine, ddp, normal, parameters, results
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradwire.torch
from gradwire.torch import _tap

STEPS = 5
#: In this one rank 1 fails, where it is to.
FAILS = 3


class Blocks(nn.Module):
    """A chain of layers; backward computes some of them again."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        if self.how == "all":
            x = checkpoint(self.body, x, use_reentrant=True)
        elif self.how == "nested":
            x = checkpoint(self.outer, x, use_reentrant=True)
        elif self.how:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant")
        else:
            x = self.body(x)
        return self.last(x)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x

    def outer(self, x: torch.Tensor) -> torch.Tensor:
        for at in (0, 2):
            x = checkpoint(nn.Sequential(*self.blocks[at : at + 2]), x, use_reentrant=True)
        return x


class Parts(nn.Module):
    """Two parts with an output each, and one that both use."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.trunk = nn.Linear(16, 16) if shared else nn.Identity()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.trunk(x))
        return self.a(x), self.b(x)


def data(step: int, rank: int) -> torch.Tensor:
    return normal(100 * step + rank, 4, 16)


def once(model: Any, x: torch.Tensor) -> None:
    model(x).square().mean().backward()


def all_of_it_checkpointed(model: Any, x: torch.Tensor) -> None:
    checkpoint(model, x.requires_grad_(), use_reentrant=True).square().mean().backward()


def first_then_second(model: Any, x: torch.Tensor) -> None:
    one, other = model(x)
    one.square().mean().backward(retain_graph=True)
    other.square().mean().backward()


def second_then_first(model: Any, x: torch.Tensor) -> None:
    one, other = model(x)
    other.square().mean().backward(retain_graph=True)
    one.square().mean().backward()


def one_then_both(model: Any, x: torch.Tensor) -> None:
    one, other = model(x)
    with model.no_sync():
        one.square().mean().backward(retain_graph=True)
    (one + other).square().mean().backward()


def twice_through_a_graph(model: Any, x: torch.Tensor) -> None:
    loss = model(x).square().mean()
    with model.no_sync():
        loss.backward(retain_graph=True)
    loss.backward()


def two_forwards(model: Any, x: torch.Tensor) -> None:
    once(model, x)
    once(model, x + 1)


def forwards_first(model: Any, x: torch.Tensor) -> None:
    (model(x).square().mean() + model(x + 1).square().mean()).backward()


def accumulated(model: Any, x: torch.Tensor) -> None:
    with model.no_sync():
        once(model, x)
        once(model, x + 1)
    once(model, x + 2)


def asked_for(model: Any, x: torch.Tensor) -> None:
    """Gradients that are asked for by name, which DDP does not see, before those that it reduces."""
    loss = model(x).square().mean()
    asked = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    loss.backward()
    twin = type(model.module)()
    twin.load_state_dict(model.module.state_dict())
    once(twin, x)
    for one, other in zip(asked, twin.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def penalized(model: Any, x: torch.Tensor) -> None:
    loss = model(x.requires_grad_()).square().mean()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + slope.square().sum()).backward()


def by_name(model: Any, x: torch.Tensor) -> None:
    model(x).square().mean().backward(inputs=list(model.parameters()))


def some_by_name(model: Any, x: torch.Tensor) -> None:
    model(x).square().mean().backward(inputs=list(model.parameters())[:3])


def beside(model: Any, x: torch.Tensor) -> None:
    """In another thread."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            once(model, x)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def around(model: Any, x: torch.Tensor) -> None:
    """Another backward in the middle of this one."""
    inner = nn.Linear(16, 1)

    def look(gradient: torch.Tensor) -> None:
        with torch.enable_grad():
            inner(gradient.detach()).sum().backward()

    hidden = model(x)
    hidden.register_hook(look)
    handles = [parameter.register_hook(look) for parameter in model.parameters() if parameter.dim() == 2]
    hidden.square().mean().backward()
    for handle in handles:
        handle.remove()


#: The model, how DDP wraps it, and a backward.
Way = tuple[Callable[[], nn.Module], dict[str, Any], Callable[[Any, torch.Tensor], None]]
VIEW, STATIC, UNUSED = {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}
WAYS: dict[str, Way] = {
    "once": (Blocks, {}, once),
    "checkpoints": (lambda: Blocks("plain"), {}, once),
    "checkpoints, static": (lambda: Blocks("plain"), STATIC, once),
    "reentrant": (lambda: Blocks("reentrant"), {}, once),
    "reentrant, views": (lambda: Blocks("reentrant"), VIEW, once),
    "reentrant, static": (lambda: Blocks("reentrant"), STATIC, once),
    "reentrant, accumulated": (lambda: Blocks("reentrant"), VIEW, accumulated),
    "reentrant, two forwards": (lambda: Blocks("reentrant"), VIEW, two_forwards),
    "one reentrant checkpoint": (lambda: Blocks("all"), {}, once),
    "nested": (lambda: Blocks("nested"), {}, once),
    "nested, static": (lambda: Blocks("nested"), STATIC | VIEW, once),
    "the whole model": (Blocks, {}, all_of_it_checkpointed),
    "the whole model, reentrant in itself": (lambda: Blocks("reentrant"), VIEW, all_of_it_checkpointed),
    "two losses": (Parts, {}, first_then_second),
    "two losses, views": (Parts, VIEW, second_then_first),
    "two losses, static": (Parts, STATIC, second_then_first),
    "two losses, unused": (Parts, UNUSED, first_then_second),
    "two losses of one trunk": (lambda: Parts(True), {}, first_then_second),
    "one loss, then both": (lambda: Parts(True), {}, one_then_both),
    "retained": (Blocks, VIEW, twice_through_a_graph),
    "two forwards": (Blocks, {}, two_forwards),
    "two forwards first": (Blocks, VIEW, forwards_first),
    "accumulated": (Blocks, VIEW, accumulated),
    "accumulated, static": (Blocks, STATIC, accumulated),
    "asked for": (Blocks, {}, asked_for),
    "asked for, views": (Blocks, VIEW, asked_for),
    "penalized": (Blocks, VIEW, penalized),
    "by name": (Blocks, VIEW, by_name),
    "some by name": (Blocks, {}, some_by_name),
    "beside": (Blocks, VIEW, beside),
    "around": (Blocks, {}, around),
}


def walk(rank: int, way: Way, codec: str | None, fails: str = "") -> tuple[Any, ...]:
    """Some steps: the parameters, how many steps the hook made, and what ended it."""
    _tap.LEAST_ELEMENTS = 0
    build, options, backward = way
    model = build()
    parallel = ddp(model, bucket_cap_mb=0.001, **options)
    hook = codec and gradwire.torch.compress(parallel, codec, check_every=1, timeout=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    raised, step = "", 0
    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            if hook and fails and step == FAILS and rank == 1:
                break_engine(hook, fails, lambda job: job.is_last)
            backward(parallel, data(step, rank))
            optimizer.step()
    except Exception as error:
        raised = f"{step} {type(error).__name__}: {str(error).splitlines()[0]}"
    if not hook:
        return parameters(model), 0, raised
    steps = hook.step
    hook.close()
    return parameters(model), steps, raised


def walked(rank: int, world: int) -> dict[str, dict[str, tuple[Any, ...]]]:
    return {
        name: {
            "all-reduce": walk(rank, way, None),
            "none": walk(rank, way, "none"),
            "sparse": walk(rank, way, "topk:density=0.1"),
            "failed": walk(rank, way, "topk:density=0.1", "on_encode"),
            "failed late": walk(rank, way, "topk:density=0.1", "on_decode"),
        }
        for name, way in WAYS.items()
    }


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, dict[str, tuple[Any, ...]]]]:
    return results(2, walked, seconds=300)


def floats(values: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(values), dtype=torch.float32)


def is_refused(way: str, two_ranks: Any) -> bool:
    """Whether DDP raises without the hook."""
    return bool(two_ranks[0][way]["all-reduce"][2])


def drifts(way: str, two_ranks: Any) -> bool:
    """Whether DDP itself adds gradients that it does not reduce, as in a second backward through a graph."""
    return not is_refused(way, two_ranks) and len({rank[way]["all-reduce"][0] for rank in two_ranks}) > 1


@pytest.mark.parametrize("way", WAYS)
def test_every_backward_that_ddp_takes_is_taken(way: str, two_ranks: Any) -> None:
    plain, none = two_ranks[0][way]["all-reduce"], two_ranks[0][way]["none"]
    for rank in two_ranks:
        found = {how: rank[way][how] for how in ("all-reduce", "none", "sparse")}
        if drifts(way, two_ranks):
            assert all(one[2].startswith("1 ReplicasDifferError") for how, one in found.items() if how != "all-reduce")
            continue
        # What DDP refuses, it refuses with the hook, in the same step and words.
        assert {one[2] for one in found.values()} == {plain[2]}
        if is_refused(way, two_ranks):
            continue
        assert found["none"][0] == none[0]
        torch.testing.assert_close(floats(found["none"][0]), floats(plain[0]))
        assert found["sparse"][0] == two_ranks[0][way]["sparse"][0]
        assert found["sparse"][1] == none[1] >= STEPS


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_at_the_last_bucket_is_raised_by_that_backward(way: str, two_ranks: Any) -> None:
    if is_refused(way, two_ranks) or drifts(way, two_ranks):
        pytest.skip("DDP refuses it, or its replicas drift apart")
    for how in ("failed", "failed late"):
        waited, failed = (rank[way][how] for rank in two_ranks)
        assert failed[2] == f"{FAILS} MemoryError: no room", how
        assert waited[2].startswith(f"{FAILS} PeerFailedError: step "), how
        # No rank has stepped with gradients of its own.
        assert waited[0] == failed[0], how


def test_these_are_what_ddp_itself_refuses_or_leaves_unreduced(two_ranks: Any) -> None:
    assert {way for way in WAYS if is_refused(way, two_ranks)} == {
        "accumulated, static",
        "one loss, then both",
        "some by name",
        "two losses of one trunk",
        "two losses, unused",
    }
    assert {way for way in WAYS if drifts(way, two_ranks)} == {"retained", "two losses, static"}
