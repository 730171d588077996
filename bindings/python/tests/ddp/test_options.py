"""Options are checked when they are given: the message names the option, and what is allowed."""

from __future__ import annotations

import datetime
import math
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Net, Raised, ddp, loss_of, results, run
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import gradwire
import gradwire.torch
from gradwire.torch import DistributedOptimizer

WHOLE = "expected a whole number, 0 or more"
#: Of compress and of DistributedOptimizer: what is given, the type of the error, and parts of its text.
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"codec": gradwire.Codec("topk:density=0.01")}, "TypeError", "codec=Codec('topk:density=0.01'): expected the spelling"),
    ({"codec": None}, "TypeError", "codec=None: expected the spelling of a codec"),
    ({"codec": "topk:densty=0.01"}, "ValueError", "topk has no key 'densty': expected one of density"),
    ({"codec": "dgc:density=0.01,clip=1"}, "ValueError", "dgc:density=0.01,clip=1: clip: it bounds the norm"),
    ({"codec": "dgc:clip=0.000001"}, "ValueError", "leave clip out, or pass clip_norm="),
    ({"rules": [("*.bias", "none")]}, "TypeError", "rules=[('*.bias', 'none')]: expected a dict of patterns"),
    ({"rules": "none"}, "TypeError", "rules='none': expected a dict of patterns and spellings"),
    ({"rules": {"*.bias": None}}, "TypeError", "rules: '*.bias'=None: expected the spelling of a codec"),
    ({"rules": {3: "none"}}, "TypeError", "rules: a pattern=3: expected a name"),
    ({"rules": {"*.bias": "nonesuch"}}, "ValueError", "rules: '*.bias': nonesuch: unknown codec"),
    ({"rules": {"*.weight": "dgc:clip=1"}}, "ValueError", "rules: '*.weight': dgc:clip=1: clip"),
    ({"dense_below": -1}, "ValueError", "dense_below=-1: expected 0 or more"),
    ({"dense_below": 1e3}, "TypeError", f"dense_below=1000.0: {WHOLE}"),
    ({"dense_below": None}, "TypeError", f"dense_below=None: {WHOLE}"),
    ({"seed": -1}, "ValueError", "seed=-1: expected 0 or more"),
    ({"seed": 2**70}, "ValueError", f"seed={2**70}: expected at most {2**64 - 1}"),
    ({"seed": "a"}, "TypeError", f"seed='a': {WHOLE}"),
    ({"seed": 0.5}, "TypeError", f"seed=0.5: {WHOLE}"),
    ({"seed": True}, "TypeError", f"seed=True: {WHOLE}"),
    ({"timeout": "60"}, "TypeError", "timeout='60': expected seconds, more than 0"),
    ({"timeout": datetime.timedelta(seconds=60)}, "TypeError", "expected seconds, more than 0 and at most 1e9, got timedelta"),
    ({"timeout": None}, "TypeError", "timeout=None: expected seconds"),
    ({"timeout": 0}, "ValueError", "timeout=0: expected seconds, more than 0"),
    ({"timeout": -3.0}, "ValueError", "timeout=-3.0: expected seconds"),
    ({"timeout": math.inf}, "ValueError", "timeout=inf: expected seconds"),
    ({"timeout": math.nan}, "ValueError", "timeout=nan: expected seconds"),
    ({"timeout": 1e30}, "ValueError", "timeout=1e+30: expected seconds"),
    ({"timeout": True}, "TypeError", "timeout=True: expected seconds"),
    ({"start_step": -1}, "ValueError", "start_step=-1: expected 0 or more"),
    ({"start_step": "3"}, "TypeError", f"start_step='3': {WHOLE}"),
    ({"check_every": 0.5}, "TypeError", f"check_every=0.5: {WHOLE}"),
    ({"check_every": None}, "TypeError", f"check_every=None: {WHOLE}"),
    ({"check_every": 2**70}, "ValueError", f"check_every={2**70}: expected at most"),
    ({"scaler": True}, "TypeError", "scaler=True: expected a GradScaler, or another object with get_scale()"),
    ({"scaler": 1024.0}, "TypeError", "scaler=1024.0: expected a GradScaler"),
    ({"density": 0.01}, "TypeError", "density=0.01: expected a function of the step; a fixed density stands in the codec"),
    ({"density": float}, "TypeError", "density=<class 'float'>: expected a function of the step"),
    ({"threads": 0}, "ValueError", "threads=0: expected 1 or more"),
    ({"threads": 1000}, "ValueError", "threads=1000: expected at most 256"),
    ({"threads": 1.0}, "TypeError", "threads=1.0: expected a whole number, 1 or more"),
    ({"clip_norm": 0}, "ValueError", "clip_norm=0: expected a finite number above 0"),
    ({"clip_norm": math.inf}, "ValueError", "clip_norm=inf: expected a finite number"),
    ({"clip_norm": "1"}, "TypeError", "clip_norm='1': expected a finite number"),
    ({"discardable": 1}, "TypeError", "discardable=1: expected True or False"),
    ({"discardable": None}, "TypeError", "discardable=None: expected True or False"),
    ({"network": 3}, "TypeError", "network=3: expected the name of an interface or an address, got int"),
    ({"network": ["lo"]}, "TypeError", "network=['lo']: expected the name of an interface or an address, got list"),
    ({"encrypt": "no"}, "TypeError", "encrypt='no': expected True or False"),
    ({"encrypt": 0}, "TypeError", "encrypt=0: expected True or False"),
    ({"wire": "f16"}, "ValueError", "wire='f16': expected 'f32' or 'bf16'"),
    ({"wire": None}, "ValueError", "wire=None: expected 'f32' or 'bf16'"),
    ({"wire": torch.bfloat16}, "ValueError", "wire=torch.bfloat16: expected 'f32' or 'bf16'"),
    ({"codec": "topk:density=0.1", "wire": "bf16"}, "ValueError", "topk:density=0.1 makes frames, which travel as they are"),
    (
        {"codec": "bf16", "rules": {"*weight": "qsgd"}, "wire": "bf16"},
        "ValueError",
        "bf16 makes frames, which travel as they are",
    ),
    ({"allow_untested": 1}, "TypeError", "allow_untested=1: expected True or False"),
    ({"allow_untested": "yes"}, "TypeError", "allow_untested='yes': expected True or False"),
]
SGD = {"optimizer": torch.optim.SGD(Net().parameters(), lr=0.1)}
WRONG_OF_COMPRESS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"optimizer": torch.optim.SGD},
        "TypeError",
        "torch.optim.sgd.SGD'>: expected an optimizer whose param_groups[0] has an lr",
    ),
    ({"codec": "auto"}, "ValueError", "codec='auto': it needs optimizer="),
    ({"codec": "auto", **SGD, "clip_norm": 1.0}, "ValueError", "codec='auto': clip_norm= does not go with it"),
    ({"codec": "auto", **SGD, "wire": "bf16"}, "ValueError", "codec='auto': wire= does not go with it"),
    ({"codec": "auto", **SGD, "rules": {"*": "none"}}, "ValueError", "codec='auto': rules= does not go with it"),
    ({"codec": "auto", **SGD, "density": lambda step: 0.1}, "ValueError", "codec='auto': density= does not go with it"),
    ({"optimizer": 0.1}, "TypeError", "optimizer=0.1: expected an optimizer"),
    ({"optimizer": True}, "TypeError", "optimizer=True: expected an optimizer"),
]
WRONG_OF_OPTIMIZER: list[tuple[dict[str, Any], str, str]] = [
    ({"backward_passes_per_step": 0}, "ValueError", "backward_passes_per_step=0: expected 1 or more"),
    ({"backward_passes_per_step": 1.5}, "TypeError", "backward_passes_per_step=1.5: expected a whole number, 1 or more"),
    ({"bucket_cap_mb": 0}, "ValueError", "bucket_cap_mb=0: expected megabytes, more than 0"),
    ({"bucket_cap_mb": "25"}, "TypeError", "bucket_cap_mb='25': expected megabytes, more than 0"),
    ({"bucket_cap_mb": math.nan}, "ValueError", "bucket_cap_mb=nan: expected megabytes"),
    ({"rescale": 1.0}, "TypeError", "rescale=1.0: expected True or False"),
    ({"group": 0}, "TypeError", "group=0: expected a process group that this rank is in"),
    ({"named_parameters": Net().parameters()}, "TypeError", "as model.named_parameters() gives; one of them is Parameter"),
    ({"named_parameters": Net()}, "TypeError", "expected pairs of a name and a parameter, as model.named_parameters() gives"),
    ({"named_parameters": Net().state_dict()}, "TypeError", "expected pairs of a name and a parameter"),
]
#: Allowed, though a check could take them for something else.
RIGHT: list[dict[str, Any]] = [
    {"seed": 2**64 - 1, "check_every": 0, "dense_below": 0, "start_step": 0},
    {"seed": np.int64(3), "timeout": np.float32(5), "dense_below": np.uint8(3)},
    {"timeout": 1e9, "rules": None},
    {"rules": {}, "density": lambda step: np.float64(0.5)},
    {"density": lambda step: torch.tensor(0.5)},
    {"scaler": torch.amp.GradScaler("cpu", enabled=False)},
    {"network": None, "encrypt": None, "wire": "f32", "discardable": True},
]
#: What a function may not say, and what is said of it.
DENSITIES: list[tuple[Any, str, str]] = [
    (5.0, "ValueError", "density(0)=5.0: expected a fraction from 1e-09 to 1"),
    (0, "ValueError", "density(0)=0: expected a fraction"),
    (math.nan, "ValueError", "density(0)=nan: expected a fraction"),
    (None, "TypeError", "density(0)=None: expected a fraction"),
    ("0.1", "TypeError", "density(0)='0.1': expected a fraction"),
]


def refusal(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def refused(rank: int, world: int) -> dict[str, Any]:
    found: dict[str, Any] = {"compress": [], "optimizer": [], "density": []}
    threads = threading.active_count()
    for given, *_ in (*WRONG, *WRONG_OF_COMPRESS):
        options = {"codec": "topk", **given}
        found["compress"].append(refusal(lambda options=options: gradwire.torch.compress(ddp(Net()), **options)))
    for given, *_ in (*WRONG, *WRONG_OF_OPTIMIZER):
        model = Net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"named_parameters": model.named_parameters(), "codec": "topk", **given}
        found["optimizer"].append(refusal(lambda inner=inner, options=options: DistributedOptimizer(inner, **options)))
    found["threads"] = threading.active_count() - threads
    for options in RIGHT:
        parallel = ddp(Net())
        hook = gradwire.torch.compress(parallel, "topk", **options)
        loss_of(parallel, 0, rank).backward()
        hook.close()
    for value, *_ in DENSITIES:
        parallel = ddp(Net())
        hook = gradwire.torch.compress(parallel, "topk", density=lambda step, value=value: value)
        found["density"].append(refusal(lambda parallel=parallel: loss_of(parallel, 0, rank).backward()))
        hook.close()
    return found


@pytest.fixture(scope="module")
def one_rank() -> Any:
    return results(1, refused)[0]


def compare(found: list[tuple[str, str]], wrong: list[tuple[Any, str, str]]) -> None:
    for (name, text), (given, expected, part) in zip(found, wrong, strict=True):
        assert name == expected, (given, text)
        assert part in text, given


def test_options_of_compress_are_checked_when_they_are_given(one_rank: Any) -> None:
    compare(one_rank["compress"], [*WRONG, *WRONG_OF_COMPRESS])


def test_options_of_the_optimizer_are_checked_when_they_are_given(one_rank: Any) -> None:
    compare(one_rank["optimizer"], [*WRONG, *WRONG_OF_OPTIMIZER])


def test_what_is_refused_leaves_no_thread(one_rank: Any) -> None:
    assert one_rank["threads"] == 0


def test_what_a_density_function_says_is_checked_in_its_step(one_rank: Any) -> None:
    compare(one_rank["density"], DENSITIES)


def one_rank_says_nonsense(rank: int, world: int) -> None:
    parallel = ddp(Net())
    gradwire.torch.compress(parallel, "topk", density=lambda step: 7.0 if rank == 1 else 0.1, timeout=8)
    loss_of(parallel, 0, rank).backward()


def test_the_other_ranks_hear_of_a_density_that_is_none() -> None:
    waited, failed = run(2, one_rank_says_nonsense)
    assert isinstance(waited, Raised)
    assert isinstance(failed, Raised)
    assert waited.name == "PeerFailedError"
    assert "rank 1: ValueError: density(0)=7.0: expected a fraction" in waited.text
    assert failed.name == "ValueError"


def methods(rank: int, world: int, folder: str) -> dict[str, Any]:
    """What is given to a hook later is checked too, and a hook that cannot be registered goes."""
    parallel = ddp(Net())
    hook = gradwire.torch.compress(parallel, "dgc:density=0.01,warmup=4")
    threads = threading.active_count()
    found = {
        "epoch": [refusal(lambda value=value: hook.set_epoch(value)) for value in ("1", -1, 1.0, None, 2**70)],
        "ratio": [refusal(lambda value=value: hook.rescale(value)) for value in ("2", None, math.nan, math.inf, True)],
        "residual": refusal(lambda: hook.residual("module.embed.weight")),
        "log": refusal(lambda: hook.log(f"{folder}/nowhere/metrics.jsonl")),
        "twice": refusal(lambda: gradwire.torch.compress(parallel, "topk")),
    }
    other = ddp(Net())
    other.register_comm_hook(None, default_hooks.allreduce_hook)
    found["another"] = refusal(lambda: gradwire.torch.compress(other, "topk"))
    ends = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < ends:
        time.sleep(0.01)
    found["threads"] = threading.active_count() - threads
    # A loss that is a tensor is as good as its number, and one that is no number ends the log, not the training.
    hook.log(f"{folder}/metrics.jsonl")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step, loss in enumerate((torch.tensor(2.5, requires_grad=True), "much", 1.0)):
            hook.loss = loss  # type: ignore[assignment]
            loss_of(parallel, step, rank).backward()
            hook.stats()
    found["told"] = [str(one.message) for one in told]
    found["steps"] = hook.stats().steps
    dist.barrier()
    return found


def test_what_is_given_later_is_checked_too(tmp_path: Any) -> None:
    found = results(1, methods, str(tmp_path))[0]
    assert [name for name, _ in found["epoch"]] == ["TypeError", "ValueError", "TypeError", "TypeError", "ValueError"]
    assert [text.partition(": ")[2].partition(",")[0] for _, text in found["epoch"]] == [
        "expected a whole number",
        "expected 0 or more",
        "expected a whole number",
        "expected a whole number",
        f"expected at most {2**63 - 1}",
    ]
    assert [name for name, _ in found["ratio"]] == ["TypeError", "TypeError", "ValueError", "ValueError", "TypeError"]
    assert all(": expected a finite number" in text for _, text in found["ratio"])
    assert found["residual"][0] == "KeyError"
    assert "'module.embed.weight': nothing is kept" in found["residual"][1]
    assert found["log"][0] == "FileNotFoundError"
    assert found["twice"][0] == found["another"][0] == "RuntimeError"
    assert found["threads"] == 0
    assert found["steps"] == 3
    assert len(found["told"]) == 1
    assert found["told"][0].startswith("the log ends: ValueError: could not convert string to float")
    assert '"loss": 2.5' in (tmp_path / "metrics.jsonl").read_text()
