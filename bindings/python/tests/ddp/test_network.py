"""Where a rank listens, and what of a gradient can be read on its way."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Raised, ddp, results, run
from relay import Relay

import gradwire.torch
from gradwire.torch import _meet, _network
from gradwire.torch._network import LOOPBACK, address_on, host_id, with_port

HAS_IPV6 = Path("/proc/net/if_inet6").exists() and "00000000000000000000000000000001" in Path("/proc/net/if_inet6").read_text()


def elsewhere() -> tuple[str, str] | None:
    """An interface of this machine off the loopback, and its address."""
    for _, name in socket.if_nameindex():
        address = _network._ipv4_of(name)
        if address is not None and not address.startswith("127."):
            return name, address
    return None


needs_another = pytest.mark.skipif(elsewhere() is None, reason="this machine has no address off the loopback interface")


@pytest.fixture(autouse=True)
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("are_together", [True, False])
@pytest.mark.parametrize(
    ("network", "variable", "address"),
    [
        ("lo", None, "127.0.0.1"),
        ("10.0.0.5", None, "10.0.0.5"),
        ("fd00:0:0::5", None, "fd00::5"),
        (None, "lo", "127.0.0.1"),
        (None, " lo , nowhere", "127.0.0.1"),
        ("10.0.0.5", "nowhere", "10.0.0.5"),
    ],
)
def test_a_network_is_named_by_an_interface_or_an_address(
    monkeypatch: pytest.MonkeyPatch, network: str | None, variable: str | None, address: str, are_together: bool
) -> None:
    if variable is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", variable)
    assert address_on(network, are_together) == address


@pytest.mark.parametrize("name", ["nowhere", "10.0.0", "localhost", "lo:1"])
def test_what_is_neither_names_the_interfaces_that_are_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = f"='{name}': expected an address, or an interface of this host, which are .*\\blo\\b"
    with pytest.raises(ValueError, match=f"^network{text}"):
        address_on(name, True)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
    with pytest.raises(ValueError, match=f"^GLOO_SOCKET_IFNAME{text}"):
        address_on(None, True)


def test_an_interface_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "down0")])
    with pytest.raises(ValueError, match="network='down0': this interface has no address"):
        address_on("down0", True)


def test_an_interface_without_ipv4_is_listened_at_by_ipv6_but_not_at_its_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe80000000000000000000fffe000001 02 40 20 80     six0\n"
        "fd000000000000000000000000000002 02 40 00 80     six0\n"
        "fe80000000000000000000fffe000002 03 40 20 80     six1\n"
    )
    monkeypatch.setattr(_network, "Path", lambda asked: table if asked == "/proc/net/if_inet6" else Path(asked))
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "six0"), (3, "six1")])
    assert address_on("six0", False) == "fd00::2"
    with pytest.raises(ValueError, match="network='six1': this interface has no address"):
        address_on("six1", False)
    table.unlink()
    with pytest.raises(ValueError, match="network='six0': this interface has no address"):
        address_on("six0", False)


@pytest.mark.parametrize(
    ("master", "address"),
    [("127.0.0.1", "127.0.0.1"), ("no-such-host.invalid", LOOPBACK), *([("::1", "::1")] if HAS_IPV6 else [])],
)
def test_ranks_of_several_hosts_listen_where_the_way_to_the_first_begins(
    monkeypatch: pytest.MonkeyPatch, master: str, address: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    assert address_on(None, False) == address
    # Those of one host meet on its loopback interface wherever the first is.
    assert address_on(None, True) == LOOPBACK


@needs_another
def test_the_way_to_another_address_begins_at_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    found = elsewhere()
    assert found is not None
    monkeypatch.setenv("MASTER_ADDR", found[1])
    assert address_on(None, False) == found[1]
    assert address_on(found[0], True) == found[1]


def test_without_a_way_to_anywhere_a_rank_listens_on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    assert address_on(None, False) == LOOPBACK
    # The host's own name stands in for that of the first.
    assert asked == [socket.gethostname()]


def test_an_address_has_its_port_behind_it() -> None:
    assert (with_port("10.0.0.5"), with_port("10.0.0.5", 7)) == ("10.0.0.5:0", "10.0.0.5:7")
    assert with_port("fd00::5", 7) == "[fd00::5]:7"


def test_a_host_is_known_by_its_boot_and_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_id() == host_id()
    assert host_id().endswith(f" {Path('/proc/self/ns/net').stat().st_ino}")

    def hidden(_: Any) -> Path:
        raise PermissionError

    monkeypatch.setattr(_network, "Path", hidden)
    assert host_id() == socket.gethostname()


#: Every value of the gradient, which stands on its way as it is unless it is encrypted.
VALUE = 0.7182818
SEEN = torch.full((8,), VALUE).numpy().tobytes()


def tapped(rank: int, options: dict[str, Any], variable: str | None) -> tuple[list[str], bool]:
    """Where the ranks listened, and whether somebody on the way of their messages reads gradients."""
    if variable is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = variable
    taps: dict[int, Relay] = {}
    seen: dict[int, list[bytes]] = {}
    listened: list[str] = []
    join = _meet._join

    def detour(listener: Any, addresses: list[str], timeout: float) -> Any:
        listened.extend(address.rpartition(":")[0] for address in addresses)
        for other, address in enumerate(addresses):
            if other != rank:
                taps[other] = Relay(address, seen.setdefault(other, []).append)
        return join(listener, [taps[at].address if at in taps else own for at, own in enumerate(addresses)], timeout)

    _meet._join = detour
    model = torch.nn.Linear(4096, 1, bias=False)
    parallel = ddp(model)
    hook = gradwire.torch.compress(parallel, "none", timeout=20, **options)
    _meet._join = join
    parallel(torch.full((1, 4096), VALUE)).sum().backward()
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, torch.tensor(VALUE))
    hook.close()
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    return listened, any(SEEN in b"".join(pieces) for pieces in seen.values())


def all_tapped(rank: int, world: int, cases: list[tuple[dict[str, Any], str | None]]) -> list[tuple[list[str], bool]]:
    """One after the other, as processes take long to start."""
    return [tapped(rank, options, variable) for options, variable in cases]


def readable(cases: list[tuple[dict[str, Any], str | None]]) -> list[tuple[set[str], bool]]:
    """Of each case, the addresses at which ranks listened, and whether gradients were read on the way between them."""
    ranks = results(2, all_tapped, cases)
    return [({*first[0], *second[0]}, first[1] or second[1]) for first, second in zip(*ranks, strict=True)]


def test_on_the_loopback_only_what_is_asked_for_is_encrypted() -> None:
    assert readable([({}, None), ({"encrypt": True}, None), ({"network": "lo"}, None), ({"encrypt": False}, "lo")]) == [
        ({LOOPBACK}, True),
        ({LOOPBACK}, False),
        ({LOOPBACK}, True),
        ({LOOPBACK}, True),
    ]


@needs_another
def test_off_the_loopback_everything_is_encrypted_unless_that_is_turned_off() -> None:
    found = elsewhere()
    assert found is not None
    name, address = found
    assert readable(
        [({"network": address}, None), ({"network": name}, None), ({}, name), ({"network": name, "encrypt": False}, None)]
    ) == [({address}, False), ({address}, False), ({address}, False), ({address}, True)]


def differing(rank: int, world: int) -> None:
    gradwire.torch.compress(ddp(torch.nn.Linear(8, 8)), "none", encrypt=rank == 0, timeout=20)


def test_ranks_that_differ_in_encryption_say_so() -> None:
    for raised in run(2, differing):
        assert isinstance(raised, Raised), raised
        assert (raised.name, raised.text) == ("ValueError", "the ranks differ in encrypt: [True, False]")


def of_another_host(rank: int, world: int) -> None:
    # An address for documentation, which no host has.
    gradwire.torch.compress(ddp(torch.nn.Linear(8, 8)), "none", network="203.0.113.9" if rank == 0 else None, timeout=5)


def test_an_address_of_another_host_is_refused_where_it_is_given() -> None:
    own, other = run(2, of_another_host)
    assert isinstance(own, Raised), own
    assert isinstance(other, Raised), other
    assert own.name == "ExchangeError"
    assert re.search(r"network: cannot listen at 203\.0\.113\.9:0", own.text), own.text
    assert (other.name, other.text) == ("PeerLostError", "ranks [0] did not make their hook or optimizer within 5 s")
