"""LocalSteps at sites that come, go and are late."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Died, Net, Raised, adamw, parameters, results, run, train
from torch.distributed import HashStore, TCPStore

import gradwire.torch
from gradwire.torch import ExchangeError, LocalSteps, PeerLostError, Sites, _rejoin
from gradwire.torch._agreement import Agreement, Arrival, Gathering
from gradwire.torch._board import Board, how_left, leave
from gradwire.torch._meet import Meeting
from gradwire.torch._sites import Attendance

EVERY = 4


def reached(port: int) -> TCPStore:
    """The store of all sites."""
    return TCPStore("127.0.0.1", port, wait_for_workers=False)


def wait_for(store: TCPStore, key: str, count: int = 1) -> None:
    """Until sites have counted a key so far."""
    ends = time.monotonic() + 60
    while store.add(key, 0) < count:
        assert time.monotonic() < ends, key
        time.sleep(0.02)


def all_arrive(store: TCPStore, order: int, world: int) -> None:
    """Sites are ready for the first time in this order, so that each of them has the rank that a test gives it."""
    wait_for(store, "gradwire/sites/here/1", order)
    store.add("begun", 1)


# All alike.


def at_sites(rank: int, world: int, port: int, codec: str, options: dict[str, Any]) -> tuple[bytes, int]:
    store = reached(port)
    model = Net()
    sites = Sites(store, f"site-{rank}", quorum=world, patience=0.5)
    optimizer = LocalSteps(model, adamw(model), "nesterov", EVERY, codec, sites=sites, check_every=1, timeout=20, **options)
    all_arrive(store, rank, world)
    assert optimizer.rejoin(None) == 0
    return trained(model, optimizer, optimizer.exchange._worker.rank)


def in_a_group(rank: int, world: int, codec: str, options: dict[str, Any]) -> tuple[bytes, int]:
    model = Net()
    return trained(model, LocalSteps(model, adamw(model), "nesterov", EVERY, codec, check_every=1, **options), rank)


def trained(model: Net, optimizer: LocalSteps, rank: int) -> tuple[bytes, int]:
    train(model, optimizer, range(3 * EVERY + 1), rank)
    optimizer.synchronize()
    assert optimizer.exchanges == optimizer.exchange.step
    found = parameters(model), optimizer.exchanges
    optimizer.close()
    return found


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("none", {}),
        ("topk:density=0.05", {"overlap": 3}),
        ("qsgd:bits=4", {"fragments": 2}),
        ("efsign", {"fragments": 2, "overlap": 1}),
        ("powersgd:rank=2", {}),
    ],
)
def test_sites_that_are_all_there_make_the_bits_of_a_process_group(port: int, codec: str, options: dict[str, Any]) -> None:
    assert results(3, at_sites, port, codec, options) == results(3, in_a_group, codec, options)


# Late, lost and new.


class Walk(torch.nn.Module):
    """A parameter that each step moves by as much as this site's pace."""

    def __init__(self) -> None:
        super().__init__()
        self.place = torch.nn.Parameter(torch.zeros(200))


def walking(store: TCPStore, name: str, **options: Any) -> tuple[Walk, LocalSteps]:
    model = Walk()
    sites = Sites(store, name, **{"patience": 1.0, **options})
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, LocalSteps(model, inner, "average", EVERY, "none", sites=sites, timeout=20, check_every=1)


def be_patient(optimizer: LocalSteps) -> None:
    """From now on this site waits for others, however long that takes."""
    optimizer._at_sites._attendance._sites._patience = 100.0


def walk(model: Walk, optimizer: LocalSteps, pace: float, steps: int = EVERY) -> float:
    """Where the model is after so many steps."""
    for _ in range(steps):
        model.place.grad = torch.full_like(model.place, -pace)
        optimizer.step()
    assert model.place.unique().numel() == 1
    return float(model.place.detach()[0])


def walk_on(store: TCPStore, rank: int, model: Walk, optimizer: LocalSteps, pace: float) -> float:
    """The same, after the second of two sites has come in; it is ready for the next exchange before the first one is."""
    if rank == 0:
        wait_for(store, "last step")
    walk(model, optimizer, pace, EVERY - 1)
    store.add("last step", 1)
    return walk(model, optimizer, pace, 1)


def is_late(rank: int, world: int, port: int, goes_on: int) -> list[float]:
    """Where two sites are; the second one is late for the first exchange, and takes so many more steps before the next one."""
    store = reached(port)
    model, optimizer = walking(store, f"site-{rank}")
    all_arrive(store, rank, world)
    optimizer.rejoin(None)
    if rank == 0:
        places = [walk(model, optimizer, 1.0)]
        store.add("first is over", 1)
        wait_for(store, "goes on")
        places.append(walk(model, optimizer, 1.0))
    else:
        walk(model, optimizer, 3.0, EVERY - 1)
        wait_for(store, "first is over")
        places = [walk(model, optimizer, 3.0, 1 + goes_on)]
        store.add("goes on", 1)
        while optimizer.exchanges < 2:
            # Steps that lead nowhere; at its own turn it waits.
            place = walk(model, optimizer, 0.0, 1)
        places.append(place)
    places.append(walk_on(store, rank, model, optimizer, 1.0 + 2 * rank))
    optimizer.close()
    return places


@pytest.mark.parametrize("goes_on", [0, 2, EVERY - 1])
def test_a_late_site_keeps_how_far_it_went(port: int, goes_on: int) -> None:
    first, second = results(2, is_late, port, goes_on)
    way = 3.0 * (EVERY + goes_on)
    # It trains alone until the second exchange is over, and brings all of its way to the third.
    assert second[:2] == [way, 8.0 + way]
    assert first == [4.0, 8.0, 8.0 + (4.0 + way + 12.0) / 2]
    assert second[2] == first[2]


def is_not_told_of_the_end(rank: int, world: int, port: int) -> list[float]:
    store = reached(port)
    model, optimizer = walking(store, f"site-{rank}")
    all_arrive(store, rank, world)
    optimizer.rejoin(None)
    if rank == 1:
        ends = optimizer._outer.synchronize

        def ends_in_a_failure() -> None:
            ends()
            raise PeerLostError("its last message did not come")

        optimizer._outer.synchronize = ends_in_a_failure  # type: ignore[method-assign]
        places = [walk(model, optimizer, 3.0)]
    else:
        places = [walk(model, optimizer, 1.0)]
        wait_for(store, "gradwire/sites/here/3")
        # Longer than those wait who are there.
        time.sleep(1.5)
        places.append(walk(model, optimizer, 1.0))
    places.append(walk_on(store, rank, model, optimizer, 1.0))
    optimizer.close()
    return places


def test_what_others_have_seen_the_end_of_counts_once(port: int) -> None:
    first, second = results(2, is_not_told_of_the_end, port)
    assert first == [8.0, 12.0, 16.0]
    assert second == first[1:]


def gets_parameters(rank: int, world: int, port: int, kind: str) -> tuple[float, list[Any]]:
    """Where a site is that comes in, and one that was there before; and what this one sent of its parameters."""
    # So that what is sent has many pieces.
    _rejoin._PIECE_BYTES = 50
    store, sent = reached(port), []
    model, optimizer = walking(store, f"site-{rank}", parameters=kind)
    if rank == 0:
        tell = _rejoin.tell

        def noted(own: Any, source: int, to: list[int], meeting: Meeting) -> Any:
            sent.extend(own["kept"]["place"].dtype for _ in to)
            return tell(own, source, to, meeting)

        _rejoin.tell = noted
        optimizer.rejoin(None)
        store.add("begun", 1)
        place = walk(model, optimizer, 0.1, EVERY - 1)
        wait_for(store, "gradwire/sites/here/2")
        place = walk(model, optimizer, 0.1, 1)
    else:
        wait_for(store, "begun")
        optimizer.rejoin(None)
        place = float(model.place.detach()[0])
    walk(model, optimizer, 0.1)
    optimizer.close()
    return place, sent


@pytest.mark.parametrize(("kind", "dtype"), [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_new_site_gets_parameters_in_the_type_that_was_asked_for(port: int, kind: str, dtype: torch.dtype) -> None:
    there, new = results(2, gets_parameters, port, kind)
    assert there[0] == new[0] == pytest.approx(0.1 * EVERY, abs=2**-10)
    assert (there[0] == float(torch.tensor(there[0]).bfloat16())) == (kind == "bf16")
    assert there[1] == [dtype]


def joins_meanwhile(rank: int, world: int, port: int) -> list[float]:
    """Where two sites are; the second one gets its parameters only after the first one has taken steps."""
    store = reached(port)
    model, optimizer = walking(store, f"site-{rank}")
    if rank == 0:
        send = _rejoin._send

        def waits(*args: Any) -> None:
            wait_for(store, "steps")
            send(*args)

        _rejoin._send = waits
        optimizer.rejoin(None)
        be_patient(optimizer)
        store.add("begun", 1)
        walk(model, optimizer, 1.0, EVERY - 1)
        wait_for(store, "gradwire/sites/here/2")
        # In this step it sends its parameters.
        places = [walk(model, optimizer, 1.0, 1), walk(model, optimizer, 1.0, EVERY - 1)]
        store.add("steps", 1)
        places.append(walk(model, optimizer, 1.0, 1))
    else:
        wait_for(store, "begun")
        optimizer.rejoin(None)
        places = [float(model.place.detach()[0])]
        wait_for(store, "gradwire/sites/here/3")
        places.append(walk(model, optimizer, 2.0, 1))
    places.append(walk(model, optimizer, 1.0 + 4 * rank))
    optimizer.close()
    return places


def test_others_take_steps_while_a_new_site_gets_the_parameters(port: int) -> None:
    there, new = results(2, joins_meanwhile, port)
    # It exchanges when the others do, after one step of its own.
    assert there == [4.0, 7.0, 7.0, 19.0]
    assert new == [4.0, 7.0, 19.0]


def packed(found: Any) -> bytes:
    file = io.BytesIO()
    torch.save(found, file)
    return file.getvalue()


def is_killed(rank: int, world: int, port: int, options: dict[str, Any]) -> tuple[int, int, bytes]:
    """Three sites. The third one is killed, and started again as the last rank, after exchanges of the others alone."""
    store = reached(port)
    model, state, started = Net(), None, 0
    name = f"site-{min(rank, 2)}"
    if rank == 3:
        wait_for(store, "alone", 2)
        state = torch.load(io.BytesIO(store.get("state")), weights_only=True)
    sites = Sites(store, name, quorum=2, patience=1.0, parameters=options.pop("parameters", "f32"))
    options = {**options, "sites": sites, "timeout": 20, "check_every": 1}
    optimizer = LocalSteps(model, adamw(model), "nesterov", EVERY, "topk:density=0.05", **options)
    if rank < 3:
        all_arrive(store, rank, 3)
    began = optimizer.rejoin(state)
    if rank == 3:
        own, residual = state["inner"]["state"][0]["step"], optimizer.exchange.residual("head.weight")
        assert optimizer.state_dict()["inner"]["state"][0]["step"] == own
        assert residual.count_nonzero()
    while optimizer.exchanges < 40:
        train(model, optimizer, range(started, started + 1), rank)
        started += 1
        if rank == 2 and optimizer.exchanges == 5:
            optimizer._end()
            store.set("state", packed(optimizer.state_dict()))
            train(model, optimizer, range(1), rank)
            os.kill(os.getpid(), signal.SIGKILL)
        if rank < 2 and optimizer.world == 2:
            store.add("alone", 1)
            time.sleep(0.05)
    optimizer.synchronize()
    found = began, optimizer.exchanges, parameters(model)
    optimizer.close()
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"parameters": "bf16"}, {"fragments": 2, "overlap": 1}, {"fragments": 2, "overlap": 2}],
    ids=["at once", "in 16 bits", "streaming", "always under way"],
)
def test_a_killed_site_is_done_without_and_comes_back(port: int, options: dict[str, Any]) -> None:
    first, second, killed, again = run(4, is_killed, port, options)
    assert not [one for one in (first, second, again) if isinstance(one, Raised | Died)], (first, second, again)
    assert isinstance(killed, Died)
    assert first[:2] == (0, second[1])
    assert first[1:] == second[1:] == again[1:]
    # It had missed exchanges.
    assert again[0] > 4


def is_killed_at_its_second(rank: int, world: int, port: int, moment: str) -> tuple[list[float], float]:
    """Where those are who are left, and how long they waited for the one that is killed while they wait for it, or exchange."""
    store = reached(port)
    model, optimizer = walking(store, f"site-{rank}")
    all_arrive(store, rank, world)
    optimizer.rejoin(None)
    be_patient(optimizer)
    places = [walk(model, optimizer, 1.0)]
    if rank == 2:
        walk(model, optimizer, 1.0, EVERY - 1)
        wait_for(store, "gradwire/sites/here/2", 2)
        if moment == "exchange":
            optimizer._begin = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
            walk(model, optimizer, 1.0, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    places += [walk(model, optimizer, 1.0 + rank) for _ in range(2)]
    waited = time.monotonic() - began
    optimizer.close()
    return places, waited


@pytest.mark.parametrize("moment", ["wait", "exchange"])
def test_nobody_waits_for_a_site_whose_connections_have_ended(port: int, moment: str) -> None:
    *left, killed = run(3, is_killed_at_its_second, port, moment)
    assert isinstance(killed, Died)
    for found in left:
        assert not isinstance(found, Raised | Died), found
        places, waited = found
        assert places == [4.0, 10.0, 16.0]
        assert waited < 50, "far less than the patience"


def cannot_come_together(rank: int, world: int, port: int) -> tuple[str, int]:
    store = reached(port)
    model = Net()
    optimizer = LocalSteps(model, adamw(model), every=1, sites=Sites(store, f"site-{rank}", quorum=2, patience=0.1), timeout=20)

    def fails(_: object) -> int:
        raise RuntimeError("no room")

    optimizer._go_on = fails  # type: ignore[method-assign]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            optimizer.rejoin(None)
        except RuntimeError as error:
            count = sum(str(one.message).endswith("sites did not come together, and meet again: no room") for one in said)
            return str(error), count
    return "", 0


def test_sites_that_never_come_together_are_told_why(port: int) -> None:
    assert results(2, cannot_come_together, port) == [("no room", 10)] * 2


def ends_late(rank: int, world: int, port: int, count: int) -> str:
    store = reached(port)
    model = Net()
    sites = Sites(store, f"site-{rank}", quorum=2, patience=0.5)
    optimizer = LocalSteps(model, adamw(model), every=1, sites=sites, timeout=20)
    optimizer.rejoin(None)
    is_late = rank >= world - count
    if is_late:
        wait_for(store, "over", world - count)
    told = ""
    try:
        train(model, optimizer, range(1), rank)
        optimizer.synchronize()
    except ExchangeError as error:
        told = str(error)
        store.add("told", 1)
    if is_late:
        # As long as each of them is there, they are enough to exchange.
        wait_for(store, "told", count)
    optimizer.close()
    store.add("over", 1)
    return told


@pytest.mark.parametrize("count", [1, 2])
def test_those_who_come_when_all_others_are_through_are_told(port: int, count: int) -> None:
    told = "the run is over: all sites of its last exchange have closed theirs, and hold its model"
    assert results(2 + count, ends_late, port, count) == ["", "", *[told] * count]


def comes_back_too_late(rank: int, world: int, port: int) -> list[str]:
    """A site is killed before the end of the run, and started again after it, when nobody goes on."""
    store = reached(port)
    model = Net()
    sites = Sites(store, f"site-{rank}", quorum=2, patience=0.5, gone_after=2)
    made = LocalSteps(model, adamw(model), every=1, sites=sites, timeout=20)
    if rank == world - 1:
        wait_for(store, "over", world - 1)
    said = []
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        try:
            made.rejoin(None)
            train(model, made, range(1), rank)
            made.synchronize()
        except ExchangeError as error:
            said = [str(one.message) for one in log] + [str(error)]
    made.close()
    store.add("over", 1)
    return said


def test_who_is_started_again_after_the_end_is_told_that_the_others_are_through(port: int) -> None:
    there = "sites that are there: 1, quorum=2: "
    said = [f"gradwire: {there}all sites of the last exchange have closed theirs; waiting for others", f"{there}no other came"]
    assert results(3, comes_back_too_late, port) == [[], [], said]


def test_the_example_runs(port: int, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "sites.py"
    command = [sys.executable, str(example), "--store", f"127.0.0.1:{port}", "--folder", str(tmp_path), "--exchanges"]
    for goes_on, exchanges in enumerate([4, 7]):
        sites = [
            subprocess.Popen([*command, str(exchanges), "--name", name, "--patience", "3"], stdout=subprocess.PIPE, text=True)
            for name in ("one", "two")
        ]
        said = [site.communicate(timeout=100)[0].splitlines() for site in sites]
        assert [site.returncode for site in sites] == [0, 0], said
        for lines in said:
            begins = [line.partition(", loss ")[0] for line in lines]
            first = 1 + 4 * goes_on
            assert begins == [f"exchange {exchange} at 2 sites" for exchange in range(first, exchanges + 1)]


# What is refused.


def test_one_process_refuses_what_it_cannot_do(port: int) -> None:
    store, model = reached(port), Net()
    sites = Sites(store, "site", patience=0.1, gone_after=0.5, quorum=2)

    def made(**options: Any) -> LocalSteps:
        return LocalSteps(model, adamw(model), sites=sites, **options)

    for options in ({"codec": "auto"}, {"group": object()}):
        with pytest.raises(ValueError, match="sites: they go together neither with group= nor with codec='auto'"):
            made(**options)
    with pytest.raises(TypeError, match="sites='here': expected Sites, got str"):
        LocalSteps(model, adamw(model), sites="here")
    optimizer = made(every=1)
    try:
        with pytest.raises(RuntimeError, match=r"step: call rejoin\(\) before the first one"):
            optimizer.step()
        with pytest.raises(RuntimeError, match=r"load_state_dict: with sites=, pass the state to rejoin\(\)"):
            optimizer.load_state_dict(optimizer.state_dict())
        with pytest.raises(ValueError, match="state=7: expected"):
            optimizer.rejoin(7)
        waits = pytest.warns(UserWarning, match="gradwire: sites that are there: 1, quorum=2: waiting for others")
        with waits, pytest.raises(ExchangeError, match="sites that are there: 1, quorum=2: no other came"):
            optimizer.rejoin(None)
    finally:
        optimizer.close()
    other = LocalSteps(model, adamw(model), every=2, sites=sites)
    try:
        with pytest.raises(ValueError, match="the sites differ in every: 2 here, 1 where the run began"):
            other.rejoin(None)
    finally:
        other.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"store": "file"}, "store: expected a store"),
        ({"name": ""}, "name='': expected the name"),
        ({"name": 3}, "name=3: expected the name"),
        ({"quorum": 0}, "quorum=0: expected 1 or more"),
        ({"patience": 0}, "patience=0: expected seconds"),
        ({"parameters": "f16"}, "parameters='f16': expected 'f32' or 'bf16'"),
        ({"gone_after": float("nan")}, "gone_after=nan: expected seconds"),
    ],
)
def test_options_are_checked_when_they_are_given(options: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        Sites(**{"store": HashStore(), "name": "site", **options})


def test_a_store_that_is_gone_is_said() -> None:
    held = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store, model = reached(held.port), Net()
    optimizer = LocalSteps(model, adamw(model), every=1, sites=Sites(store, "site", patience=0.1))
    optimizer.rejoin(None)
    del held
    try:
        with pytest.raises(ExchangeError, match="the store of the sites does not answer"):
            train(model, optimizer, range(1), 0)
    finally:
        optimizer.close()


# Who takes part in an exchange.

IN = Arrival("", 5, False)
FAILED, NEW = Arrival("", 5, True), Arrival("", 0, False)
LAST = Agreement(7, ("a/1", "b/1"), ("c/1",), epoch=5)


@pytest.mark.parametrize(
    ("here", "quorum", "has_waited", "expected"),
    [
        # All who were in.
        ("a b c", 1, False, Agreement(8, ("a/1", "b/1", "c/1"), (), False, 5)),
        ("c b a", 3, False, Agreement(8, ("a/1", "b/1", "c/1"), (), False, 5)),
        # One is late.
        ("a b", 1, False, None),
        ("a b", 2, True, Agreement(8, ("a/1", "b/1"), (), True, 8)),
        ("a b", 3, True, None),
        # One left.
        ("a b -c", 1, False, Agreement(8, ("a/1", "b/1"), (), True, 8)),
        # A new one, and one that was late before.
        ("a b c +d", 1, False, Agreement(8, ("a/1", "b/1", "c/1"), ("d/1",), False, 8)),
        ("a b +c", 1, False, Agreement(8, ("a/1", "b/1"), ("c/1",), True, 8)),
        # One was started again.
        ("a b c2", 1, False, Agreement(8, ("a/1", "b/1"), ("c/2",), True, 8)),
        # Their exchange failed.
        ("a! b! c!", 1, False, Agreement(8, ("a/1", "b/1", "c/1"), (), True, 8)),
        ("a! b!", 1, False, None),
        # One has seen its end, so the others missed it.
        ("b! a c! *", 1, False, Agreement(8, ("a/1",), ("b/1", "c/1"), True, 8)),
        ("b! c! *", 1, False, None),
        # Fewer than the quorum are left: all begin together.
        ("+d a b", 3, True, Agreement(8, (), ("a/1", "b/1", "d/1"), False, 8)),
        # Nobody who was in.
        ("+d +e", 1, False, None),
        ("+d +e", 1, True, Agreement(8, (), ("d/1", "e/1"), False, 8)),
    ],
)
def test_sites_agree_as_soon_as_they_can(here: str, quorum: int, has_waited: bool, expected: Agreement | None) -> None:
    arrivals, gone, has_ended = {}, set(), False
    for word in here.split():
        name = word.strip("+-!2*")
        site = f"{name}/{2 if word[-1] == '2' else 1}"
        if word == "*":
            has_ended = True
        elif word[0] == "-":
            gone.add(site)
        else:
            own = NEW if word[0] == "+" or word[-1] == "2" else FAILED if word[-1] == "!" else IN
            arrivals[site] = Arrival(name, own.epoch, own.has_failed)
    gathering = Gathering(LAST, arrivals, frozenset(gone), has_ended)
    found = gathering.agreed(quorum, has_waited=has_waited)
    assert found == expected
    if found is not None:
        assert Agreement.heard(8, found.told().encode()) == found


class Asked:
    """A store that counts what it is asked."""

    def __init__(self) -> None:
        self.store, self.count = HashStore(), 0

    def __getattr__(self, name: str) -> Any:
        self.count += 1
        return getattr(self.store, name)

    def since(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.mark.parametrize(
    ("here", "gone", "expected"),
    [
        ({"a/1": ("c/1",), "b/1": ()}, (), True),
        ({"a/1": (), "b/1": ()}, (), False),
        # One of those who are missing was not lost.
        ({"a/1": ("c/1",)}, (), False),
        ({"a/1": ("c/1",)}, ("b/1",), True),
        # Nobody is missing: it was started again, or is alive.
        ({"a/1": ("c/1",), "b/1": (), "c/2": ()}, (), False),
        ({"a/1": ("c/1",), "b/1": (), "c/1": ("a/1", "b/1")}, (), False),
    ],
)
def test_sites_that_were_lost_in_an_exchange_are_not_waited_for_long(
    here: dict[str, tuple[str, ...]], gone: tuple[str, ...], *, expected: bool
) -> None:
    arrivals = {site: Arrival(site.split("/")[0], 3, True, lost) for site, lost in here.items()}
    last = Agreement(5, ("a/1", "b/1", "c/1"), epoch=3)
    assert Gathering(last, arrivals, frozenset(gone), False).are_missing_lost == expected
    assert not Gathering(Agreement(0), arrivals, frozenset(gone), False).are_missing_lost


def test_a_site_that_waits_asks_for_nothing_twice() -> None:
    asked = Asked()
    store: Any = asked
    last = Agreement(7, tuple(f"{name}/1" for name in "abcdef"), epoch=5)
    board, others = Board(store, last), Board(store, last)
    leave(store, "f/1", "gone")
    assert others.come("a/1", IN)
    for name in "bcd":
        assert not others.come(f"{name}/1", IN)
    # One that has taken its place, and not filled it.
    at = store.add("here/8", 1)
    asked.since()

    found = board.gathering()
    assert (list(found.here), found.gone, found.is_complete) == (["a/1", "b/1", "c/1", "d/1"], {"f/1"}, False)
    assert asked.since() <= 2 * 5 + 6 + 2, "each place and each site once"

    assert board.gathering() == found
    assert asked.since() <= 3, "how many are ready, the place that was empty, and how many left"

    store.set(f"here/8/{at}", '["e/1", "e", 5, true, ["b/1"]]')
    asked.since()
    found = board.gathering()
    assert (found.here["e/1"], found.has_ended, found.is_complete) == (Arrival("e", 5, True, ("b/1",)), False, True)
    assert asked.since() <= 3 + 2, "its words, and whether any has seen the end of what failed"

    store.set("ended/7", "1")
    assert board.gathering().has_ended


def test_a_site_that_leaves_is_noticed_by_those_who_wait() -> None:
    store = HashStore()
    last = Agreement(7, ("a/1", "b/1", "c/1"), epoch=5)
    board = Board(store, last)
    board.come("a/1", IN)
    board.come("b/1", IN)
    assert not board.gathering().is_complete
    leave(store, "x/1", "gone")
    assert not board.gathering().is_complete, "a stranger"
    leave(store, "c/1", "over")
    assert board.gathering().is_complete
    assert [how_left(store, site) for site in ("a/1", "c/1", "x/1")] == [b"", b"over", b"gone"]
    # One that is lost does not say so.
    assert Board(store, last).gathering(["a/1", "b/1"]).gone == {"a/1", "b/1", "c/1"}
    # Also one that had left before it was expected, or was ready before it left.
    leave(store, "b/1", "gone")
    following = Board(store, Agreement(8, ("a/1", "b/1"), ("c/1",), epoch=5))
    following.come("a/1", IN)
    assert following.gathering().is_complete


def test_ended_connections_count_only_among_those_who_are_connected(port: int) -> None:
    gone = [1]
    attendance = Attendance(Sites(reached(port), "a"), lambda: gone)
    try:
        me = attendance.me
        members = (me, "b/1", "c/1")
        now = Agreement(3, members, epoch=2)
        attendance._last, attendance._epoch, attendance._group = now, 2, members
        assert attendance._lost() == ["b/1"]
        # Of two sites the one that is left continues; of three, it may be the one that was cut off.
        gone.append(2)
        assert attendance._lost() == []
        attendance._group = members[:2]
        gone.remove(2)
        assert attendance._lost() == ["b/1"]
        attendance._group = members
        # Others have connected anew, without this site or because one of them failed.
        attendance._last = Agreement(4, members[1:], epoch=4)
        assert attendance._lost() == []
        # Whoever saw it fail has closed all of its connections.
        attendance._last = now
        attendance.failed(now, [])
        assert attendance._lost() == []
        attendance.lost()
        assert attendance._lost() == []
        # Those who met were fewer than before, and did not come together: what is asked still has the ranks of before.
        attendance._group = members[:1]
        assert attendance._lost() == []
    finally:
        attendance.leave(is_over=True)


def test_what_was_told_long_ago_is_forgotten() -> None:
    store = HashStore()
    old = Board(store, Agreement(7))
    old.come("a/1", IN)
    old.come("b/1", IN)
    store.set("agreed/8", "x")
    store.set("ended/7", "1")
    store.set("here/9", "1")
    old.forget()
    assert store.num_keys() == 1
    # That none was told is no fault.
    old.forget()
    assert store.check(["here/9"])


def test_sites_are_public() -> None:
    assert gradwire.torch.Sites is Sites
