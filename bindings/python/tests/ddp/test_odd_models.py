"""Models and settings of torch that are seldom, and that plain DDP takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Net, Raised, batch, ddp, loss_of, normal, parameters, results, run, use_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch
from gradwire.torch import DistributedOptimizer


class Empty(nn.Module):
    """Parameters without an element: first, last, in a bucket of their own, and of several shapes."""

    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(7)
        if "first" in where:
            self.before = nn.Parameter(torch.zeros(0))
        self.one = nn.Linear(16, 16)
        if "inside" in where:
            self.inside = nn.Linear(16, 0)
            self.flat = nn.Parameter(torch.zeros(3, 0, 2))
        self.other = nn.Linear(16, 8)
        if "last" in where:
            self.behind = nn.Parameter(torch.zeros(0, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.one(x))
        empty = [p.sum() for name, p in self.named_parameters() if not p.numel() and "inside" not in name]
        if hasattr(self, "inside"):
            x = torch.cat([x, self.inside(x)], 1)
        return self.other(x) + sum(empty, torch.zeros(()))


def data(step: int, rank: int) -> torch.Tensor:
    return normal(100 * step + rank, 4, 16)


def train(model: nn.Module, rank: int, codec: str | None, is_optimizer: bool = False, **options: Any) -> bytes:
    """The parameters after four steps."""
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_optimizer:
        assert codec
        optimizer = DistributedOptimizer(inner, model.named_parameters(), codec, bucket_cap_mb=0.0005, check_every=1)
        run, exchange = model, optimizer.exchange
    else:
        run = ddp(model, bucket_cap_mb=0.0005, **options)
        optimizer = inner
        exchange = codec and gradwire.torch.compress(run, codec, check_every=1, timeout=8)
    for step in range(4):
        optimizer.zero_grad()
        run(data(step, rank)).square().mean().backward()
        optimizer.step()
    if exchange:
        assert exchange.step == 4
        exchange.close()
    return parameters(model)


WHERE = ["first", "inside", "last", "first inside last"]
CODECS = ["none", "topk:density=0.1", "powersgd:rank=1", "qsgd:bits=4"]


def without_elements(rank: int, world: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    every = range(len(WHERE))
    return {
        "plain": [train(Empty(WHERE[at]), rank, None) for at in every],
        "none": [train(Empty(WHERE[at]), rank, "none") for at in every],
        "views": [train(Empty(WHERE[at]), rank, "none", gradient_as_bucket_view=True) for at in every],
        "unused": [train(Empty(WHERE[at]), rank, "none", find_unused_parameters=True) for at in every],
        "optimizer": [train(Empty(WHERE[at]), rank, "none", is_optimizer=True) for at in every],
        "codecs": [train(Empty(where), rank, codec) for where in WHERE for codec in CODECS],
        # What is empty has no part in the bits of what is not.
        "alone": [train(Empty(""), rank, codec) for codec in CODECS],
    }


def floats(values: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(values), dtype=torch.float32)


def test_parameters_without_elements_have_nothing_to_send() -> None:
    first, second = results(2, without_elements)
    assert first == second
    for way in ("none", "views", "unused", "optimizer"):
        for ours, plain in zip(first[way], first["plain"], strict=True):
            torch.testing.assert_close(floats(ours), floats(plain))
    assert first["codecs"][:2] == first["alone"][:2]


def defaults(rank: int, world: int, build: Callable[[], nn.Module] = Net) -> bytes:
    """Steps that are dense, compressed, not finite and unused, with and without DDP, and what they leave."""
    model, other, half = build(), build(), build().to(torch.bfloat16)
    inputs = [batch(step, rank) for step in range(5)]
    made = torch.optim.SGD(other.parameters(), lr=0.1)
    bits = []
    parallel, halved = ddp(model, find_unused_parameters=True), ddp(half)
    with use_defaults():
        rules = {"head.*": "none", "sometimes.*": "powersgd:rank=1", "embed.*": "qsgd:bits=4"}
        hooks = [
            gradwire.torch.compress(parallel, "topk:density=0.1", rules=rules, start_step=1, check_every=1),
            gradwire.torch.compress(halved, "topk:density=0.1", dense_below=0),
        ]
        optimizer = DistributedOptimizer(made, other.named_parameters(), "topk:density=0.1", check_every=1)
        for step, (tokens, targets) in enumerate(inputs):
            for one in (model, other, half):
                one.zero_grad()
            for run in (parallel, other, halved):
                given = {"skip": step == 2 and rank == 1} if run is not halved else {}
                loss = nn.functional.cross_entropy(run(tokens, **given).float(), targets)
                (loss * float("inf") if step == 3 and rank == 0 else loss).backward()
            optimizer.synchronize()
            bits += [one.grad.float().cpu().numpy().tobytes() for net in (model, other, half) for one in net.parameters()]
            if step != 3:
                optimizer.step()
        for hook in (*hooks, optimizer.exchange):
            state = hook.state_dict()
            hook.load_state_dict(state)
            bits += [tensor.cpu().numpy().tobytes() for tensor in state["residual"].values()]
            assert all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in state["residual"].values())
            assert hook.stats().skipped_steps == 1
        assert hooks[0].residual("inner.weight").dtype == torch.float32
        for hook in (*hooks, optimizer.exchange):
            hook.close()
    return b"".join(bits)


class use_defaults:  # noqa: N801
    """The defaults of torch that are tried."""

    dtype, device = torch.float32, "cpu"

    def __enter__(self) -> None:
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(self.device)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        use_device()


def all_defaults(rank: int, world: int) -> list[bytes]:
    found = []
    for dtype, device in [
        (torch.float32, "cpu"),
        (torch.float64, "cpu"),
        (torch.bfloat16, "cpu"),
        (torch.float16, "cpu"),
        (torch.float32, "meta"),
        (torch.bfloat16, "meta"),
    ]:
        use_defaults.dtype, use_defaults.device = dtype, device
        found.append(defaults(rank, world))
    return found


def test_no_bit_depends_on_torchs_default_type_and_device() -> None:
    for usual, *others in results(2, all_defaults):
        assert [other == usual for other in others] == [True] * 5


class Sparse(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words, self.out = layer, nn.Linear(8, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.words(tokens)
        return self.out(found.mean(1) if found.dim() == 3 else found)


class Table(nn.Module):
    """A plain parameter that is used as an embedding; DDP does not know that its gradient is sparse."""

    def __init__(self, bags: bool) -> None:
        super().__init__()
        self.words, self.out, self.bags = nn.Parameter(torch.ones(40, 8)), nn.Linear(8, 10), bags

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.bags:
            return self.out(nn.functional.embedding_bag(tokens, self.words, mode="sum", sparse=True))
        return self.out(nn.functional.embedding(tokens, self.words, sparse=True).mean(1))


def tables(rank: int, world: int) -> list[str]:
    """Sparse gradients of plain parameters."""
    found = []
    for bags in (False, True):
        for view in (False, True):
            parallel = DistributedDataParallel(Table(bags), gradient_as_bucket_view=view)
            hook = gradwire.torch.compress(parallel, "topk", timeout=8)
            with pytest.raises(gradwire.torch.ExchangeError) as refused:
                nn.functional.cross_entropy(parallel(batch(0, rank)[0]), batch(0, rank)[1]).backward()
            found.append(str(refused.value))
            hook.close()
    return found


def test_a_sparse_gradient_of_a_plain_parameter_is_refused_with_its_name() -> None:
    for texts in results(2, tables):
        for text in texts:
            assert text.startswith("words: its gradient is sparse (torch.sparse_coo)")
            assert "leave out sparse=True" in text


class Late(nn.Module):
    """Some parameters are used later than others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.uses = nn.Linear(8, 10), nn.Linear(8, 10), ["first"]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return sum((getattr(self, name)(inputs) for name in self.uses), torch.zeros(()))


def looks(rank: int, world: int) -> list[list[str]]:
    """The tensors that have hooks after each step."""
    model = Late()
    own = model.second.bias.register_hook(lambda gradient: None)
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    hook = gradwire.torch.compress(parallel, "topk")
    found = []
    for uses in (["first"], ["first"], ["second"], ["first", "second"]):
        model.uses = uses
        parallel(torch.ones(4, 8)).sum().backward()
        found.append([name for name, one in model.named_parameters() if one._backward_hooks is not None])
    own.remove()
    hook.close()
    return found


def test_each_tensor_is_looked_at_once_and_no_hook_of_ours_stays() -> None:
    for found in results(2, looks):
        assert found == [["second.weight", "second.bias"], ["second.weight", "second.bias"], ["second.bias"], ["second.bias"]]


def sparse(rank: int, world: int) -> list[str]:
    """Layers that are refused beforehand, and one whose gradients turn out to be sparse."""
    found = []
    for layer in (nn.Embedding(40, 8, sparse=True), nn.EmbeddingBag(40, 8, sparse=True, mode="sum")):
        with pytest.raises(ValueError, match="sparse=True, and sparse gradients are not supported") as refused:
            gradwire.torch.compress(ddp(Sparse(layer)), "topk")
        found.append(str(refused.value))
    # Frozen layers have no gradient.
    frozen = Sparse(nn.Embedding(40, 8, sparse=True))
    frozen.words.weight.requires_grad = False
    gradwire.torch.compress(ddp(frozen), "topk").close()
    late = Sparse(nn.Embedding(40, 8, sparse=True))
    parallel = ddp(late)
    late.words.sparse = False
    gradwire.torch.compress(parallel, "topk", timeout=8)
    late.words.sparse = True
    with pytest.raises(gradwire.torch.ExchangeError) as refused_late:
        nn.functional.cross_entropy(parallel(batch(0, rank)[0]), batch(0, rank)[1]).backward()
    other = Sparse(nn.Embedding(40, 8, sparse=True))
    optimizer = DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters(), "topk", timeout=8)
    with pytest.raises(ValueError, match="dense gradient") as refused_by_optimizer:
        nn.functional.cross_entropy(other(batch(0, rank)[0]), batch(0, rank)[1]).backward()
    optimizer.close()
    return [*found, str(refused_late.value), str(refused_by_optimizer.value)]


def test_sparse_gradients_are_refused_with_the_name_of_the_tensor() -> None:
    for texts in results(2, sparse):
        assert [text.partition(":")[0] for text in texts] == ["words.weight"] * 4


def frozen_between(rank: int, world: int, thaws: bool) -> bytes:
    """A layer is frozen between DDP and the hook, and perhaps no longer is later."""
    model = Net()
    parallel = ddp(model, find_unused_parameters=True)
    model.sometimes.weight.requires_grad = model.sometimes.bias.requires_grad = False
    hook = gradwire.torch.compress(parallel, "none", check_every=1, timeout=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if thaws and step == 2:
            model.sometimes.weight.requires_grad = True
        optimizer.zero_grad()
        loss_of(parallel, step, rank).backward()
        optimizer.step()
    assert hook.step == 4
    assert model.sometimes.weight.grad is None
    return parameters(model)


def test_a_layer_that_was_frozen_before_the_hook_was_made_is_none_of_its() -> None:
    first, second = results(2, frozen_between, False)
    assert first == second


def test_a_layer_that_thaws_is_refused_by_name() -> None:
    for result in run(2, frozen_between, True):
        assert isinstance(result, Raised)
        assert result.name == "ExchangeError"
        assert "sometimes.weight: it was frozen when compress was called, and no longer is" in result.text


class Bug(nn.Module):
    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        raise KeyError("a bug of the user")


def forward_fails(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    """An exception in forward, after which the step is made all the same."""
    whole, model.norm = model.norm, Bug()
    with pytest.raises(KeyError):
        loss_of(parallel, step, rank)
    model.norm = whole


def loss_is_dropped(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    loss_of(parallel, step + 50, rank)


def layer_is_frozen(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    model.inner.weight.requires_grad_(False)


def layer_is_frozen_for_a_step(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    model.inner.weight.requires_grad_(step != 2)


def memory_is_replaced(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def gradients_are_kept(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def model_is_evaluated(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    parallel.eval()
    with torch.no_grad():
        loss_of(parallel, step, rank)
    with torch.inference_mode():
        loss_of(parallel, step, rank)
    parallel.train()


def state_is_loaded(model: nn.Module, parallel: Any, step: int, rank: int) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=False)


#: What happens before each step from the third one on.
EVENTS = [
    forward_fails,
    loss_is_dropped,
    layer_is_frozen,
    layer_is_frozen_for_a_step,
    memory_is_replaced,
    gradients_are_kept,
    model_is_evaluated,
    state_is_loaded,
]


def lived_through(rank: int, world: int) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for event in EVENTS:
        for codec in (None, "none", "topk:density=0.1"):
            model = Net()
            parallel = ddp(model, find_unused_parameters=True, gradient_as_bucket_view=codec == "none")
            hook = codec and gradwire.torch.compress(parallel, codec, check_every=1, timeout=8)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(5):
                optimizer.zero_grad()
                if step >= 2:
                    event(model, parallel, step, rank)
                loss_of(parallel, step, rank).backward()
                optimizer.step()
            if hook:
                assert (hook.step, hook.stats().hash_checks) == (5, 5), event.__name__
                hook.close()
            found.setdefault(event.__name__, []).append(parameters(model))
    return found


def test_events_of_a_training_do_what_they_do_with_plain_ddp() -> None:
    first, second = results(2, lived_through)
    assert first == second
    for event, (plain, dense, _) in first.items():
        torch.testing.assert_close(floats(dense), floats(plain), msg=lambda text, event=event: f"{event}: {text}")
