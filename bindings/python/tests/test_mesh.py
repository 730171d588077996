"""Ranks as processes of their own, without torch: means over TCP, and what each hears of a rank that fails."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

import gradwire

CONTEXT = multiprocessing.get_context("forkserver")
LAYOUT = {"w": (40, 30), "b": (7,)}
SIZE = 1207
KEY = bytes(range(32))


def _main(rank: int, end: Connection, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    options = args[0] if args and isinstance(args[0], dict) else {}
    listener = gradwire.Listener(rank, **options)
    end.send(listener.address)
    result: Any
    try:
        result = call(listener, end.recv(), *args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    end.send(result)


def run(world: int, call: Callable[..., Any], *args: Any) -> list[Any]:
    """What `call(listener, addresses, *args)` returns at each rank, or what it raises as text; `None` of one that died."""
    pipes = [CONTEXT.Pipe() for _ in range(world)]
    ranks = [CONTEXT.Process(target=_main, args=(rank, end, call, args)) for rank, (_, end) in enumerate(pipes)]
    for process, (_, end) in zip(ranks, pipes, strict=True):
        process.start()
        end.close()
    try:
        addresses = [own.recv() for own, _ in pipes]
        for own, _ in pipes:
            own.send(addresses)
        found = []
        for own, _ in pipes:
            assert own.poll(60), "a rank hangs"
            try:
                found.append(own.recv())
            except EOFError:
                found.append(None)
        for process in ranks:
            process.join(20)
            assert process.exitcode is not None
        return found
    finally:
        for process in ranks:
            process.kill()
            process.join(5)


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).normal(size=SIZE).astype(np.float32)


def meaned(listener: gradwire.Listener, addresses: list[str], options: dict[str, Any], spelling: str, wire: Any) -> Any:
    mesh = listener.join(addresses, timeout=30)
    codec = gradwire.Codec(spelling)
    exchange = gradwire.Exchange(mesh, codec, LAYOUT, seed=5, wire=wire)
    memory = None if codec.memory == "none" else gradwire.Memory(codec, LAYOUT)
    means = []
    for step in range(3):
        out = np.empty(SIZE, np.float32) if step else None
        mean = exchange.mean(gradient(mesh.rank, step), memory, step=step, out=out)
        assert out is None or mean is out
        means.append(mean.tobytes())
    sent = mesh.sent
    mesh.close()
    return means, b"" if memory is None else memory.save(), sent


def replay(spelling: str, world: int) -> tuple[list[bytes], list[bytes]]:
    """The same by frames and rounds of the package."""
    codec = gradwire.Codec(spelling)
    memories = [None if codec.memory == "none" else gradwire.Memory(codec, LAYOUT) for _ in range(world)]
    means = []
    for step in range(3):
        total = np.zeros(SIZE, np.float32)
        if codec.is_linear:
            both = [
                codec.begin(
                    gradient(rank, step), gradwire.Layout(LAYOUT), memories[rank], step=step, seed=5, rank=rank, workers=world
                )
                for rank in range(world)
            ]
            for units in zip(*both, strict=True):
                while not units[0].done:
                    payloads = [unit.payload for unit in units]
                    reduced = payloads[0].copy()
                    for payload in payloads[1:]:
                        reduced = np.maximum(reduced, payload) if units[0].reduction == "max" else reduced + payload
                    for unit, payload in zip(units, payloads, strict=True):
                        payload[:] = reduced
                        unit.advance()
                total[slice(*units[0].range)] = units[0].mean
        else:
            for rank in range(world):
                grad = gradient(rank, step)
                gradwire.add(
                    codec.encode(grad, gradwire.Layout(LAYOUT), memories[rank], step=step, seed=5, rank=rank),
                    total,
                    layout=LAYOUT,
                )
            assert gradwire.divide(total, world) is None
        means.append(total.tobytes())
    return means, [b"" if memory is None else memory.save() for memory in memories]


@pytest.mark.parametrize("spelling", ["topk:density=0.05", "dgc:density=0.1", "qsgd:bits=4", "none", "powersgd:rank=2"])
@pytest.mark.parametrize("options", [{}, {"address": "[::1]:0", "key": KEY}])
def test_means_over_tcp_are_those_of_a_replay(spelling: str, options: dict[str, Any]) -> None:
    means, saved = replay(spelling, 3)
    for rank, found in enumerate(run(3, meaned, options, spelling, "f32")):
        assert found[:2] == (means, saved[rank])


def test_sums_take_what_a_ring_takes_and_half_with_16_bits_on_the_wire() -> None:
    full, half = run(3, meaned, {}, "none", "f32"), run(3, meaned, {}, "none", "bf16")
    ring = 3 * 2 * 2 / 3 * 4 * SIZE
    for one, other in zip(full, half, strict=True):
        assert ring < one[2] < 1.2 * ring
        assert ring / 2 < other[2] < 0.65 * ring
        exact, near = (np.frombuffer(found[0][0], np.float32) for found in (one, other))
        np.testing.assert_allclose(near, exact, rtol=0.02, atol=0.02)
    assert len({one[0][0] for one in half}) == 1


def of_another(listener: gradwire.Listener, addresses: list[str], options: dict[str, Any], how: str) -> Any:
    rank = addresses.index(listener.address)
    mesh = listener.join(addresses, timeout=30)
    codec = gradwire.Codec("topk:density=0.05")
    exchange, memory = gradwire.Exchange(mesh, codec, SIZE, timeout=8), gradwire.Memory(codec, SIZE)
    exchange.mean(gradient(rank, 0), memory, step=0)
    before, began = memory.save(), time.monotonic()
    grad = gradient(rank, 1)
    if rank == 1:
        if how == "dies":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stays away":
            time.sleep(12)
            return "late"
        if how == "not finite":
            grad[3] = np.nan
        if how == "interrupted":
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError("enough")))
            signal.setitimer(signal.ITIMER_REAL, 0.5)
    elif how == "interrupted":
        time.sleep(2)
    with pytest.raises((gradwire.ExchangeError, gradwire.EncodeError, InterruptedError)) as raised:
        exchange.mean(grad, memory, step=1)
    assert memory.save() == before
    # What the others are told leaves before the process does.
    mesh.close()
    return type(raised.value).__name__, str(raised.value), time.monotonic() - began


@pytest.mark.parametrize(
    ("how", "own", "text"),
    [
        ("dies", None, "rank 1"),
        ("stays away", "late", "rank 1"),
        ("not finite", "EncodeError", "the gradient of rank 1 cannot be sent, its coordinate 3 is to blame"),
        ("interrupted", "InterruptedError", "rank 1 failed: it was interrupted"),
    ],
)
def test_all_ranks_hear_of_one_that_fails_and_their_memories_stay(how: str, own: str | None, text: str) -> None:
    found = run(3, of_another, {}, how)
    assert found[1] == own or found[1][0] == own
    for name, said, seconds in (found[0], found[2]):
        assert name == "ExchangeError"
        assert text in said
        assert seconds < 12


def met(listener: gradwire.Listener, addresses: list[str], options: dict[str, Any]) -> str:
    listener.join(addresses, timeout=3)
    return "joined"


def alone(listener: gradwire.Listener, addresses: list[str], options: dict[str, Any]) -> str:
    if addresses[1] == listener.address:
        return "stays away"
    return met(listener, addresses, options)


def test_a_rank_that_does_not_join_is_named() -> None:
    first, second = run(2, alone, {})
    assert second == "stays away"
    assert first.startswith("ExchangeError: not there in time: rank 1")


def test_what_the_ranks_do_not_have_in_common_is_named() -> None:
    pair = [gradwire.Listener(rank, terms={"batch": 64 << rank}) for rank in range(2)]
    addresses = [one.address for one in pair]
    with multiprocessing.pool.ThreadPool(2) as pool:
        found = pool.map(lambda one: _refused(one, addresses), pair)
    assert all("batch is" in text and "64" in text and "128" in text for text in found), found


def _refused(listener: gradwire.Listener, addresses: list[str]) -> str:
    with pytest.raises(gradwire.ExchangeError) as raised:
        listener.join(addresses, timeout=20)
    return str(raised.value)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: gradwire.Listener(0, key=b"short"), ValueError, "key: expected 32 bytes"),
        (lambda: gradwire.Listener(0, "0.0.0.0:0"), gradwire.ExchangeError, "not on the loopback interface"),
        (lambda: gradwire.Listener(0, "nonsense"), gradwire.ExchangeError, "cannot listen at nonsense"),
        (lambda: gradwire.Listener(0, terms={"x": "y" * 600}), ValueError, "at most 512 bytes"),
        (lambda: gradwire.Listener(3).join(["127.0.0.1:1"]), ValueError, "addresses: expected one for each rank"),
        (lambda: gradwire.Listener(0).join(["127.0.0.1:1"], timeout=0), ValueError, "timeout=0: expected seconds"),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_misuse_of_a_mesh_and_an_exchange_is_an_error() -> None:
    listener = gradwire.Listener(0)
    mesh = listener.join([listener.address])
    with pytest.raises(ValueError, match="called before"):
        listener.join([listener.address])
    codec = gradwire.Codec("topk:density=0.5")
    for spelling, options, text in [
        ("topk", {"wire": "bf16"}, "makes frames"),
        ("none", {"wire": "f64"}, "expected one of f32 bf16"),
        ("none", {"units": []}, "expected one or more"),
        ("dpsgd", {}, "gossip"),
        ("topk", {"timeout": -1}, "timeout=-1"),
    ]:
        with pytest.raises(ValueError, match=text):
            gradwire.Exchange(mesh, gradwire.Codec(spelling), 4, **options)  # type: ignore[arg-type]
    exchange, memory, grad = gradwire.Exchange(mesh, codec, 4), gradwire.Memory(codec, 4), np.ones(4, np.float32)
    with pytest.raises(ValueError, match="pass memory="):
        exchange.mean(grad, step=0)
    with pytest.raises(ValueError, match="expected 4 elements"):
        exchange.mean(grad[:3], memory, step=0)
    with pytest.raises(ValueError, match="other memory"):
        exchange.mean(grad, memory, step=0, out=grad)
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        mesh.__reduce__()
    own_units = gradwire.Exchange(mesh, gradwire.Codec("none"), 4, units=[(3, 0, 1, False), (9, 1, 3, False)])
    assert own_units.mean(grad, step=0).tolist() == [1] * 4
    mesh.close()
    mesh.close()
    with pytest.raises(RuntimeError, match="closed"):
        exchange.mean(grad, memory, step=0)


def test_a_forked_process_leaves_a_mesh_alone() -> None:
    listeners = [gradwire.Listener(rank) for rank in range(2)]
    addresses = [one.address for one in listeners]
    with multiprocessing.pool.ThreadPool(2) as pool:
        meshes = pool.map(lambda one: one.join(addresses, timeout=20), listeners)
    child = os.fork()
    if child == 0:
        code = 0
        try:
            meshes[0].sent  # noqa: B018
        except RuntimeError:
            code = 7
        meshes[1].close()
        del meshes
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    exchanges = [gradwire.Exchange(mesh, gradwire.Codec("none"), 4) for mesh in meshes]
    with multiprocessing.pool.ThreadPool(2) as pool:
        means = pool.map(lambda rank: exchanges[rank].mean(np.full(4, rank, np.float32), step=0), range(2))
    assert all(mean.tolist() == [0.5] * 4 for mean in means)
