"""As much of libzmq as a hostile peer needs."""

import ctypes
import ctypes.util

DEALER, ROUTER = 5, 6
POLLIN, DONTWAIT, SNDMORE = 1, 1, 2
RCVMORE, LINGER = 13, 17
CURVE_PUBLICKEY, CURVE_SECRETKEY, CURVE_SERVERKEY = 48, 49, 50
LARGEST_PACKET = 1 << 21

LIBRARY = ctypes.CDLL(ctypes.util.find_library("zmq"))
LIBRARY.zmq_ctx_new.restype = ctypes.c_void_p
LIBRARY.zmq_socket.restype = ctypes.c_void_p
CONTEXT = LIBRARY.zmq_ctx_new()


class PollItem(ctypes.Structure):
    _fields_ = [
        ("socket", ctypes.c_void_p),
        ("fd", ctypes.c_int),
        ("events", ctypes.c_short),
        ("revents", ctypes.c_short),
    ]


class Socket:
    def __init__(self, kind):
        self.handle = ctypes.c_void_p(LIBRARY.zmq_socket(ctypes.c_void_p(CONTEXT), kind))
        self._set(LINGER, ctypes.c_int(0))
        self._buffer = ctypes.create_string_buffer(LARGEST_PACKET)

    def use_keys(self, own, server):
        """`own` is a file of `trainer keygen`, `server` a public key."""
        fields = dict(line.split() for line in own.read_text().splitlines() if line.startswith("gradwire-"))
        for option, key in [
            (CURVE_PUBLICKEY, fields["gradwire-public"]),
            (CURVE_SECRETKEY, fields["gradwire-secret"]),
            (CURVE_SERVERKEY, server),
        ]:
            self._set(option, ctypes.create_string_buffer(key.encode()))

    def bind(self, endpoint):
        _check(LIBRARY.zmq_bind(self.handle, endpoint.encode()))

    def connect(self, endpoint):
        _check(LIBRARY.zmq_connect(self.handle, endpoint.encode()))

    def send(self, *parts):
        """Where there is no room, the message is dropped."""
        for at, part in enumerate(parts):
            more = SNDMORE if at + 1 < len(parts) else 0
            if LIBRARY.zmq_send(self.handle, part, len(part), DONTWAIT | more) < 0:
                return

    def receive(self):
        """The parts of one message; it must be there."""
        parts = []
        more = ctypes.c_int(1)
        while more.value:
            size = _check(LIBRARY.zmq_recv(self.handle, self._buffer, LARGEST_PACKET, 0))
            parts.append(self._buffer.raw[:size])
            length = ctypes.c_size_t(ctypes.sizeof(more))
            _check(LIBRARY.zmq_getsockopt(self.handle, RCVMORE, ctypes.byref(more), ctypes.byref(length)))
        return parts

    def _set(self, option, value):
        _check(LIBRARY.zmq_setsockopt(self.handle, option, ctypes.byref(value), ctypes.sizeof(value)))


def ready(sockets, milliseconds):
    """Those of the sockets at which a message waits."""
    items = (PollItem * len(sockets))(*(PollItem(socket.handle, 0, POLLIN, 0) for socket in sockets))
    LIBRARY.zmq_poll(items, len(items), milliseconds)
    return [socket for socket, item in zip(sockets, items) if item.revents]


def _check(result):
    assert result >= 0, f"libzmq: error {LIBRARY.zmq_errno()}"
    return result
