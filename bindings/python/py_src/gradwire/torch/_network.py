"""Where this rank listens for the others."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

# Of Linux: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 256
LOOPBACK = "127.0.0.1"


def host_id() -> str:
    """The same for all processes that reach each other on the loopback interface, and for no others."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    return socket.gethostname()


def address_on(network: str | None, are_together: bool) -> str:
    """The address to listen at: of a network, given as the name of an interface or as an address; else any that fits.

    ``GLOO_SOCKET_IFNAME`` names an interface too. Without either, ranks of one host meet on its loopback interface, and those
    of several listen where the way to ``MASTER_ADDR`` begins.
    """
    if network:
        return _address_of("network", network)
    if name := os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0].strip():
        return _address_of("GLOO_SOCKET_IFNAME", name)
    return LOOPBACK if are_together else _address_towards(os.environ.get("MASTER_ADDR"))


def with_port(address: str, port: int = 0) -> str:
    """As ``host:port``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _address_of(said_by: str, name: str) -> str:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name))
    if name in {own for _, own in socket.if_nameindex()}:
        address = _ipv4_of(name) or _ipv6_of(name)
        if address is None:
            raise ValueError(f"{said_by}={name!r}: this interface has no address")
        return address
    known = " ".join(own for _, own in socket.if_nameindex())
    raise ValueError(f"{said_by}={name!r}: expected an address, or an interface of this host, which are {known}")


def _ipv4_of(interface: str) -> str | None:
    request = struct.pack(f"{_NAME_BYTES}s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        return socket.inet_ntoa(fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)[20:24])
    return None


def _ipv6_of(interface: str) -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            address = ipaddress.IPv6Address(int(digits, 16))
            if name == interface and not address.is_link_local:
                return str(address)
    return None


def _address_towards(master: str | None) -> str:
    """That of the interface by which packets go to the master; else that of the host's own name."""
    with contextlib.suppress(OSError):
        for family, *_, target in socket.getaddrinfo(master or socket.gethostname(), 1, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
                # Nothing is sent: this asks for the way.
                asked.connect(target)
                return str(asked.getsockname()[0])
    return LOOPBACK
