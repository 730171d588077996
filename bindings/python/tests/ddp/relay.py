"""What lies on the way between two ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

PIECE = 1 << 16


class Relay:
    """Passes on what goes to an address and what comes back; `on_piece` sees each piece first."""

    def __init__(self, address: str, on_piece: Callable[[bytes], object]) -> None:
        host, _, port = address.rpartition(":")
        self._target, self._on_piece = (host.strip("[]"), int(port)), on_piece
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(self._target)
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        while piece := source.recv(PIECE):
            self._on_piece(piece)
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
