"""Gradients that the hook takes before DDP copies them: nobody notices but the clock."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from ranks import DEVICE, Net, ddp, loss_of, results
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradwire.torch
from gradwire.torch import _tap

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="gradients of other devices are not taken before DDP copies them")

# Bytes, as pipes carry tensors only while both ends live.
Grads = list[list[bytes | None]]


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().numpy().tobytes()


class Loop:
    """Steps of a model, whose gradients are looked at after each backward."""

    def __init__(self, model: nn.Module, is_tapped: bool, codec: str = "topk:density=0.02", **options: Any) -> None:
        _tap.LEAST_ELEMENTS = 0
        self.model = model
        self.parallel = ddp(model, gradient_as_bucket_view=is_tapped, **options)
        self.hook = gradwire.torch.compress(self.parallel, codec, check_every=1, seed=3)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        self.seen: Grads = []
        self.taken = 0
        claim = self.hook._intake.tap.claim

        def counted(positions: Sequence[int]) -> dict[int, torch.Tensor]:
            claimed = claim(positions)
            self.taken += len(claimed)
            return claimed

        self.hook._intake.tap.claim = counted  # type: ignore[method-assign]

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        loss.backward(**options)
        self.look()

    def look(self) -> None:
        self.seen.append([None if one.grad is None else bytes_of(one.grad) for one in self.model.parameters()])

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, rank: int, count: int) -> None:
        for step in range(count):
            self.backward(loss_of(self.parallel, 100 + step, rank))
            self.update()

    def end(self) -> tuple[Grads, int]:
        self.hook.close()
        return [*self.seen, [bytes_of(one) for one in self.model.parameters()]], self.taken


def ordinary(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    """Several buckets, which are cut anew after the first step."""
    loop = Loop(Net(), is_tapped, bucket_cap_mb=0.01)
    loop.steps(rank, 5)
    return loop.end()


def linear_codec(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    loop = Loop(Net(), is_tapped, codec="powersgd:rank=1")
    loop.steps(rank, 4)
    return loop.end()


def dense_codec(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    loop = Loop(Net(), is_tapped, codec="qsgd:bits=4")
    loop.steps(rank, 4)
    return loop.end()


def accumulated(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    """A gradient that others were added to is no longer that of one backward."""
    loop = Loop(Net(), is_tapped)
    loop.steps(rank, 3)
    for step in range(3):
        with loop.parallel.no_sync():
            loop.backward(loss_of(loop.parallel, step, rank))
            loop.backward(loss_of(loop.parallel, 10 + step, rank))
        loop.backward(loss_of(loop.parallel, 20 + step, rank))
        loop.update()
    return loop.end()


def kept(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    loop = Loop(Net(), is_tapped)
    for step in range(6):
        loop.optimizer.zero_grad(set_to_none=step in (3, 5))
        loop.backward(loss_of(loop.parallel, step, rank))
        loop.optimizer.step()
    return loop.end()


def mixed_up(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    """Forward inside of `no_sync` and backward outside, which DDP does not reduce; then the other way round."""
    loop = Loop(Net(), is_tapped)
    loop.steps(rank, 3)
    with loop.parallel.no_sync():
        loss = loss_of(loop.parallel, 0, rank)
    loop.backward(loss)
    loop.optimizer.zero_grad()
    loss = loss_of(loop.parallel, 1, rank)
    with loop.parallel.no_sync():
        loop.backward(loss)
    loop.update()
    loop.steps(rank, 2)
    return loop.end()


def hooked(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    """Others look at gradients, and change them, for some steps."""
    loop = Loop(Net(), is_tapped)
    loop.steps(rank, 3)
    weight = loop.model.inner.weight
    norms = []
    handles = [
        weight.register_hook(lambda gradient: 2 * gradient),
        loop.model.head.weight.register_hook(lambda gradient: norms.append(gradient.norm())),
        loop.model.embed.weight.register_post_accumulate_grad_hook(lambda one: norms.append(one.grad.norm())),
    ]
    loop.steps(rank, 2)
    for handle in handles:
        handle.remove()
    loop.steps(rank, 2)
    assert len(norms) == 4
    loop.seen.append([bytes_of(norm) for norm in norms])
    return loop.end()


def differentiable(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    loop = Loop(Net(), is_tapped)
    loop.steps(rank, 3)
    loop.backward(loss_of(loop.parallel, 0, rank), retain_graph=True)
    loop.update()
    loop.steps(rank, 1)
    return loop.end()


def unused(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    loop = Loop(Net(unused=True), is_tapped, find_unused_parameters=True)
    for step in range(5):
        loop.backward(loss_of(loop.parallel, step, rank, skip=step == 3 or (step == 4 and rank == 0)))
        loop.update()
    return loop.end()


class Shared(nn.Module):
    """One layer in three parts of the graph, two of them computed again in backward: it gets its gradients one by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed, self.inner, self.head = nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens).mean(1)
        for _ in range(2):
            hidden = checkpoint(lambda x: torch.tanh(self.inner(x)), hidden, use_reentrant=True)
        return self.head(torch.tanh(self.inner(hidden)))


def twice(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    loop = Loop(Shared(), is_tapped, static_graph=True)
    loop.steps(rank, 5)
    return loop.end()


class Odd(nn.Module):
    """Gradients that are one tensor for two parameters, or not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(40, 32)
        self.one, self.other = nn.Parameter(torch.randn(8, 32)), nn.Parameter(torch.randn(8, 32))
        self.turned = nn.Parameter(torch.randn(10, 32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.embed(tokens).mean(1) * (self.one + self.other)) @ self.turned.t().contiguous()


def odd(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    loop = Loop(Odd(), is_tapped)
    loop.steps(rank, 5)
    return loop.end()


def failed(rank: int, is_tapped: bool) -> tuple[Grads, int]:
    """A backward that ends half-way, after which DDP refuses to go on: what was taken goes with it."""
    loop = Loop(Net(), is_tapped, bucket_cap_mb=25)
    loop.steps(rank, 3)
    handle = loop.model.norm.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        loss_of(loop.parallel, 0, rank).backward()
    handle.remove()
    assert not loop.hook._intake.tap._backwards
    return loop.end()


#: With how many gradients are taken at least: all nine of a `Net` in each step from the third one on.
SCENES: dict[Callable[[int, bool], tuple[Grads, int]], int] = {
    ordinary: 3 * 9,
    linear_codec: 2 * 9,
    dense_codec: 2 * 9,
    accumulated: 9,
    kept: 2 * 9,
    mixed_up: 3 * 9,
    hooked: 9 + 2 * 6 + 2 * 9,
    differentiable: 3 * 9,
    unused: 2 * 9 + 2 * 7,
    twice: 3 * 3,
    odd: 3 * 3,
    failed: 9,
}


def played(rank: int, world: int) -> dict[str, list[tuple[Grads, int]]]:
    return {scene.__name__: [scene(rank, is_tapped) for is_tapped in (True, False)] for scene in SCENES}


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, list[tuple[Grads, int]]]]:
    return results(2, played, seconds=300)


@pytest.mark.parametrize("scene", [scene.__name__ for scene in SCENES])
def test_everybody_sees_the_bits_that_they_would_see_without(scene: str, two_ranks: Any) -> None:
    for rank in two_ranks:
        (tapped, taken), (plain, none) = rank[scene]
        assert len(tapped) == len(plain)
        for number, (ours, theirs) in enumerate(zip(tapped, plain, strict=True)):
            assert [own == other for own, other in zip(ours, theirs, strict=True)] == [True] * len(ours), number
        least = next(count for one, count in SCENES.items() if one.__name__ == scene)
        assert taken >= least
        assert none == 0


def saved(rank: int, world: int) -> list[int]:
    """A model can be saved and copied as a whole, and is what it was when the hook is closed."""
    loop = Loop(Net(), True)
    loop.steps(rank, 3)
    torch.save(loop.model, io.BytesIO())
    assert not any(one._backward_hooks for one in copy.deepcopy(loop.model).parameters())
    hooks = [sum(len(one._backward_hooks or ()) for one in loop.model.parameters())]
    loop.hook.close()
    return [*hooks, sum(len(one._backward_hooks or ()) for one in loop.model.parameters())]


def test_a_tapped_model_can_be_saved() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert results(2, saved) == [[9, 0], [9, 0]]
