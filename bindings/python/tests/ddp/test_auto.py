"""A hook that chooses its codec: that all ranks choose alike by their times, lose nothing, and keep to what was chosen."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import DEVICE, Net, ddp, loss_of, parameters, results

import gradwire.torch
from gradwire.integrations._hook import hook_of
from gradwire.torch._auto import WITH_OTHERS, WITH_SGD
from gradwire.torch._kinds import is_sgd
from gradwire.torch._trials import Took, Trials

#: Steps of the first trial, and of each that follows: warm, timed, and one in which ranks tell each other.
FIRST, EACH = 9, 7
#: Nothing is hidden at 6 %.
EXPOSED = 0.06


def hear_all(*ranks: list[float], compute: float = 1.0) -> Trials:
    """Of each rank, how long it waits with each."""
    trials = Trials(len(ranks[0]))
    while trials.choice is None:
        trials.hear([[compute, waits[trials.at], 9.0, *[waits[trials.at]] * 3] for waits in ranks])
    return trials


def test_the_first_that_is_hidden_is_taken_and_no_other_is_tried() -> None:
    trials = hear_all([0.5, 0.04, 0.0])
    assert (trials.choice, len(trials.tried)) == (1, 2)
    assert hear_all([0.05, 0.0]).choice == 0


def test_where_none_is_hidden_it_is_the_first_that_is_nearly_as_fast_as_the_fastest() -> None:
    assert hear_all([0.9, 0.5, 0.31, 0.27]).choice == 2
    assert hear_all([0.9, 0.5, 0.4, 0.27, 0.5]).choice == 3
    assert hear_all([0.06, 0.07, 0.08]).choice == 0


def test_a_rank_that_waits_for_slower_ones_does_not_count() -> None:
    for ranks in ([[0.9, 0.04, 0.0], [2.0] * 3], [[2.0] * 3, [0.9, 0.04, 0.0]]):
        assert hear_all(*ranks).choice == 1


def test_a_rank_says_what_it_timed_and_nothing_of_steps_without_inputs() -> None:
    trials = Trials(2)
    for number in range(8):
        assert trials.says() is None
        trials.step(Took(9.0, 9.0) if number < 3 else Took(number, 0.5))
    assert trials.says() == [5, 0.5, 0.5, 0.5, 0.5, 0.5]
    idle = Trials(2)
    for _ in range(8):
        idle.step(None)
    trials.hear([trials.says() or [], idle.says() or []])
    assert trials.tried == [Took(5, 0.5)]
    assert (trials.at, trials.says()) == (1, None)


def test_only_plain_sgd_has_sparse_gradients() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3))]

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    sgd = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    assert is_sgd(sgd)
    assert is_sgd(Wrapper(Wrapper(sgd)))
    for other in (torch.optim.AdamW(weights), torch.optim.Adagrad(weights), Wrapper(torch.optim.Adam(weights)), None):
        assert not is_sgd(other)


def says(waits: list[float]) -> None:
    """From now on this rank says that it waits so long with each, of a step that computes for a second."""
    own = Trials.says
    Trials.says = lambda self: own(self) and [1.0, *[waits[self.at]] * 5]  # type: ignore[method-assign]


def steps(parallel: Any, hook: Any, optimizer: Any, rank: int, numbers: Any) -> Iterator[dict[str, Any]]:
    for step in numbers:
        optimizer.zero_grad()
        loss_of(parallel, step, rank).backward()
        optimizer.step()
        yield hook.state_dict()["auto"]


def train(rank: int, world: int, waits: list[list[float]], resumes: bool, count: int) -> dict[str, Any]:
    """So many steps; after the last but three, maybe with a hook that was made anew from the state of the one before."""
    says(waits[rank])
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "auto", optimizer=optimizer, check_every=1)
    found = list(steps(parallel, hook, optimizer, rank, range(count - 3)))
    choice = hook.stats().choice
    if resumes:
        state = hook.state_dict()
        hook.close()
        parallel = ddp(model)
        hook = gradwire.torch.compress(parallel, "auto", optimizer=optimizer, check_every=1)
        hook.load_state_dict(state)
    before = hook.stats()
    found += steps(parallel, hook, optimizer, rank, range(count - 3, count))
    stats = hook.stats()
    return {
        "states": found,
        "choice": choice,
        "bits": parameters(model),
        "norm": stats.residual_norm,
        "ratio": (stats.dense_bytes - before.dense_bytes) / (stats.frame_bytes - before.frame_bytes),
        "again": stats.choice,
        "residual": bool(hook.state_dict()["residual"]),
    }


@pytest.mark.parametrize("chosen", [1, 3])
def test_ranks_choose_alike_and_a_resumed_run_goes_on_with_that(chosen: int) -> None:
    waits = [[0.0 if at == chosen else 0.9 for at in range(7)], [0.5] * chosen + [0.04] * 7]
    count = FIRST + EACH * chosen + 4
    whole, again = (results(2, train, waits, resumes, count) for resumes in (False, True))
    way = WITH_SGD[chosen]
    for one in (*whole, *again):
        assert one["bits"] == whole[0]["bits"]
        assert [state["codec"] for state in one["states"]] == [None] * (count - 5) + [way.codec] * 5
        assert one["states"][-1]["wire"] == way.wire
        assert one["residual"] == (chosen == 3)
        assert (one["norm"] > 0) == (chosen == 3)
        assert (10 < one["ratio"] < 100) if chosen == 3 else (1.9 < one["ratio"] < 2.1), one["ratio"]
    assert whole[0]["choice"] == whole[1]["choice"]
    assert whole[0]["choice"].startswith(f"auto: {way} from step {count - 4} on: its exchange adds at most 5% to a step. ")
    assert "computes for 1000.0 ms" in whole[0]["choice"]
    assert again[0]["again"] == f"auto: {way}, as in the state that was loaded"


class Sum(torch.nn.Module):
    """Its gradients do not depend on its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(40, 30))
        self.other = torch.nn.Parameter(torch.zeros(500))

    def forward(self, factors: torch.Tensor) -> torch.Tensor:
        return (self.weight.flatten() * factors[:1200]).sum() + (self.other * factors[1200:]).sum()


def sum_up(rank: int, world: int, codec: str) -> dict[str, Any]:
    """Dense gradients are chosen after all others were tried. Some steps are repeated, not finite or thrown away."""
    says([EXPOSED] * 7)
    model = Sum()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0, growth_interval=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, codec, optimizer=optimizer, scaler=scaler, check_every=1)
    end = FIRST + 6 * EACH
    # Timed, the one in which ranks tell each other, and that in which all is sent that was kept.
    voids, discards = {4, FIRST, end + 1}, {20, end + 2}
    owes = []
    for step in range(end + 8):
        # Numbers that bfloat16 has.
        random = torch.Generator().manual_seed(9 * step + rank)
        factors = torch.randint(-8, 9, (1700,), generator=random, device="cpu").to(DEVICE).float()
        if step in voids and rank == 1:
            factors[3] = math.inf
        if step % 10 == 3:
            with parallel.no_sync():
                scaler.scale(parallel(torch.ones(1700))).backward()
        scaler.scale(parallel(factors)).backward()
        if step in discards:
            hook.discard()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        owes.append(codec == "auto" and hook.state_dict()["auto"]["owes"])
    stats = hook.stats()
    return {
        "parameters": np.concatenate([one.detach().cpu().numpy().ravel() for one in model.parameters()]),
        "norm": stats.residual_norm,
        "choice": stats.choice,
        "skipped": stats.skipped_steps,
        "owes": owes,
        "kept": len(hook.state_dict()["residual"]),
    }


def test_what_was_kept_while_codecs_were_tried_is_sent_where_dense_gradients_are_chosen() -> None:
    chosen, dense = results(2, sum_up, "auto"), results(2, sum_up, "none")
    for one, other in zip(chosen, dense, strict=True):
        assert one["choice"].startswith("auto: none from step "), one["choice"]
        assert "the gentlest whose step is within 5% of the shortest" in one["choice"]
        assert (one["skipped"], one["norm"], one["kept"]) == (3, 0.0, 0)
        np.testing.assert_allclose(one["parameters"], other["parameters"], rtol=1e-5, atol=1e-4)
        # From the first step that keeps, until all was sent in a step that holds and is not thrown away.
        assert one["owes"] == [False] * (FIRST + EACH + 1) + [True] * (5 * EACH + 3) + [False] * 4


def uneven(rank: int, world: int) -> dict[str, Any]:
    """Rank r has 4 + 30 r batches: it runs out of them while codecs are tried."""
    says([0.5, 0.5, 0.0])
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "auto", optimizer=optimizer, check_every=1)
    with parallel.join():
        list(steps(parallel, hook, optimizer, rank, range(4 + 30 * rank)))
    return {"bits": parameters(model), "state": hook.state_dict()["auto"], "checks": hook.stats().hash_checks}


def test_ranks_that_ran_out_of_inputs_choose_with_the_others() -> None:
    first, second = results(2, uneven)
    assert first == second
    assert first["state"] == {"codec": WITH_SGD[2].codec, "wire": "f32", "owes": True}
    assert first["checks"] == 34


def with_adamw(rank: int, world: int, folder: str) -> dict[str, Any]:
    """By DDP, and by the optimizer of one's own that wraps it."""
    says([0.9, 0.9, 0.9, 0.1])
    found: dict[str, Any] = {"ways": [], "bits": []}
    model = Net()
    inner = torch.optim.AdamW(model.parameters(), lr=0.001)
    optimizer = gradwire.torch.DistributedOptimizer(inner, model.named_parameters(), "auto", check_every=1)
    optimizer.exchange.log(Path(folder, "log"))
    for step in range(FIRST + 3 * EACH + 2):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
    found["state"] = optimizer.state_dict()["gradwire"]
    found["bits"], found["advice"] = parameters(model), optimizer.exchange.advice
    return found


def test_with_adamw_no_coordinate_is_left_out(tmp_path: Path) -> None:
    first, second = results(2, with_adamw, str(tmp_path))
    assert first["bits"] == second["bits"]
    assert first["state"]["auto"] == {"codec": "qsgd:bits=4", "wire": "f32", "owes": False}
    assert (first["state"]["residual"], first["advice"]) == ({}, None)
    codecs = [json.loads(line)["codec"].partition(",unit")[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert codecs == ["none"] * (FIRST + EACH) + ["qsgd:bits=8"] * EACH + ["qsgd:bits=4"] * (EACH + 2)
    assert len(WITH_OTHERS) == 4


def of_frameworks(rank: int, world: int) -> None:
    """The optimizer of a framework says what is tried, unless the caller names one; other codecs do not follow its rate."""
    model = Net()
    sgd, adam = (kind(model.parameters(), lr=0.1) for kind in (torch.optim.SGD, torch.optim.AdamW))
    for codec, options, followed in (("auto", {}, sgd), ("auto", {"optimizer": adam}, adam), ("topk", {}, None)):
        hook = hook_of(ddp(model), codec, options, scaler=None, optimizer=sgd)
        assert hook._worker.options.optimizer is followed
        assert hook._worker.auto is None or hook._worker.auto.ways == (WITH_SGD if followed is sgd else WITH_OTHERS)
        hook.close()
    with pytest.raises(ValueError, match="codec='auto': it needs optimizer="):
        hook_of(ddp(model), "auto", {}, scaler=None, optimizer=None)


def test_callbacks_of_frameworks_choose_by_the_framework_s_optimizer() -> None:
    results(2, of_frameworks)


def refused(rank: int, world: int) -> list[str]:
    """States of others, and options that do not go with it."""
    model = Net()
    sgd, adam = (kind(model.parameters(), lr=0.1) for kind in (torch.optim.SGD, torch.optim.AdamW))
    texts = []
    hook = gradwire.torch.compress(ddp(model), "auto", optimizer=adam)
    state = hook.state_dict()
    wrong: list[Any] = [
        {"codec": "topk:density=0.01", "wire": "f32", "owes": True},
        {"codec": "none", "wire": "f64", "owes": False},
        {"codec": "none", "wire": "f32", "owes": 1},
        {"codec": "none"},
        "none",
    ]
    for told in wrong:
        with pytest.raises((ValueError, TypeError)) as caught:
            hook.load_state_dict({**state, "auto": told})
        texts.append(str(caught.value))
    hook.load_state_dict({key: value for key, value in state.items() if key != "auto"})
    with pytest.raises(ValueError, match=re.escape("the ranks differ in codec: ['auto of none, none (wire=bf16), topk")):
        gradwire.torch.compress(ddp(model), "auto", optimizer=sgd if rank == 0 else adam)
    return texts


def test_states_of_other_lists_and_ranks_with_other_optimizers_are_refused() -> None:
    for texts in results(2, refused):
        assert texts[0].startswith("state: auto: topk:density=0.01 was chosen, expected one of those for this optimizer")
        assert texts[1].startswith("state: auto: none (wire=f64) was chosen")
        assert texts[2].startswith("state: auto: owes=1: expected True or False")
        assert "expected a dict with 'codec', 'wire' and 'owes'" in texts[3]
        assert "expected a dict with 'codec', 'wire' and 'owes'" in texts[4]
