"""Copies from and to a device, tested with a stand-in: its memory is that of the CPU, and it records every call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ranks import DEVICE, Net, ddp, loss_of, parameters, results

import gradwire.torch
from gradwire.torch import _plan
from gradwire.torch._stage import DeviceStage


class NoDevice:
    """Copies are done only when somebody waits for them, as on a device: whoever reads before reads something else."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.waiting: list[Callable[[], None]] = []
        self.marks = 0
        self.is_used = False

    def record(self) -> int:
        self.marks += 1
        return self.marks

    def wait(self, event: int) -> None:
        assert event <= self.marks
        self.notes.append("wait")

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        self.is_used = True
        yield
        self.is_used = False

    def synchronize(self) -> None:
        self.notes.append(f"copy {len(self.waiting)}")
        for copy in self.waiting:
            copy()
        self.waiting = []

    def pinned(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        self.notes.append("pin")
        return torch.full((elements,), 77, dtype=dtype)

    def future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future()


@contextlib.contextmanager
def late_copies(device: NoDevice) -> Iterator[None]:
    """Copies on the stream of the device wait until somebody synchronizes with it."""
    copy = torch.Tensor.copy_

    def late(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not non_blocking:
            return copy(target, source)
        assert device.is_used
        device.waiting.append(lambda: copy(target, source))
        return target

    torch.Tensor.copy_ = late  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.copy_ = copy  # type: ignore[method-assign]


def test_gradients_come_and_go_through_memory_that_is_kept() -> None:
    device = NoDevice()
    ticks = iter(range(100))
    stage = DeviceStage(device, clock=lambda: next(ticks))
    images = torch.arange(24.0).view(1, 4, 2, 3).to(memory_format=torch.channels_last)
    gradients = [images, None, torch.tensor(5.0), torch.ones(3, dtype=torch.bfloat16)]
    with late_copies(device):
        stage.wait([stage.mark(), stage.mark()])
        host = stage.fetch(0, gradients)
        assert host[1] is None
        assert [one.dtype for one in host if one is not None] == [torch.float32, torch.float32, torch.bfloat16]
        assert torch.equal(host[0], images)
        assert float(host[2]) == 5
        for one in host:
            if one is not None:
                one.mul_(2)
        stage.store(host, gradients)
    assert torch.equal(images, 2 * torch.arange(24.0).view(1, 4, 2, 3))
    assert float(gradients[2]) == 10
    assert device.notes == ["wait", "wait", "pin", "pin", "pin", "pin", "copy 3", "copy 3"]
    assert stage.seconds == 2
    # The same bucket finds its memory again; another size does not.
    again = stage.fetch(0, gradients)
    assert again[0].data_ptr() == host[0].data_ptr()
    stage.fetch(0, [torch.zeros(25)])
    assert device.notes.count("pin") == 5


def staged(rank: int, world: int, codec: str, how: str) -> dict[str, Any]:
    """What a run through a device gives, or one without."""
    model = Net(unused=True)
    device = NoDevice()
    if how == "optimizer" or how == "optimizer, plain":
        optimizer: Any = gradwire.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.2), model.named_parameters(), codec, bucket_cap_mb=0.02, check_every=1
        )
        parallel, engine = model, optimizer.exchange
    else:
        parallel = ddp(model, find_unused_parameters=True)
        engine = gradwire.torch.compress(parallel, codec, check_every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    is_plain = "plain" in how
    if not is_plain:
        engine._worker.stage = DeviceStage(device)
    bad = []
    with late_copies(device):
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(parallel, step, rank, skip=step == 2 and rank == 0)
            (loss * float("inf") if step == 3 and rank == 1 else loss).backward()
            bad.append(any(not torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None))
            if not bad[-1]:
                optimizer.step()
    seconds = engine.stats().staging_seconds
    return {
        "parameters": parameters(model),
        "residual": {name: kept.cpu().numpy().tobytes() for name, kept in engine.state_dict()["residual"].items()},
        "bad": bad,
        "is_counted": (seconds > 0) != is_plain,
        # Each bucket that was fetched had waited for its gradients before.
        "is_ordered": is_plain or device.notes.index("wait") < device.notes.index("pin"),
    }


@pytest.mark.skipif(DEVICE != "cpu", reason="the stand-in has tensors of the CPU")
@pytest.mark.parametrize("codec", ["topk:density=0.02", "powersgd:rank=1"])
@pytest.mark.parametrize("how", ["hook", "optimizer"])
def test_a_stage_changes_no_bit(how: str, codec: str) -> None:
    plain, through = results(2, staged, codec, f"{how}, plain"), results(2, staged, codec, how)
    assert plain == through
    assert plain[0]["parameters"] == plain[1]["parameters"]
    assert all(one["is_counted"] and one["is_ordered"] for one in plain + through)
    assert plain[0]["bad"] == plain[1]["bad"] == [False, False, False, True, False]


class Elsewhere:
    """A parameter that says it is on a device."""

    requires_grad = True
    shape = (2,)
    dtype = torch.float32

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def numel(self) -> int:
        return 2


def named(*devices: str, allow_untested: bool = False) -> list[Any]:
    places = [(at, f"w{at}", Elsewhere(device)) for at, device in enumerate(devices)]
    return _plan.trained(places, allow_untested=allow_untested)  # type: ignore[arg-type]


def test_a_device_that_does_not_pass_all_tests_is_refused_unless_asked_for() -> None:
    with pytest.raises(ValueError, match=r"w1: it is on cuda:1, where not all tests pass yet: pass allow_untested=True"):
        named("cpu", "cuda:1")
    assert len(named("cuda:1", "cuda:1", allow_untested=True)) == 2
    with pytest.raises(ValueError, match=r"w1: it is on cpu, w0 on cuda:0; expected one device"):
        named("cuda:0", "cpu", allow_untested=True)
    with pytest.raises(ValueError, match="w0: it is on meta; expected the CPU"):
        named("meta", allow_untested=True)


def test_the_optimizer_refuses_other_devices_too() -> None:
    model = torch.nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="weight: it is on meta"):
        gradwire.torch.DistributedOptimizer(optimizer, model.named_parameters(), "topk", allow_untested=True)
