"""A relay between a client and a server that can lose answers: the request arrives, the answer does not."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class Lossy:
    """Relays to a port, from a free one or from ``at``. While ``losing``, a server's next answer ends its
    connection instead; others are held back for ``delay_s``."""

    def __init__(self, port: int, at: int = 0) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", at))
        self.port = self._listener.getsockname()[1]
        self.losing = 0
        self.lost = 0
        self.delay_s = 0.0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Closing alone does not wake a thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in list(self._open):
            _end(peer)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._open |= {near, far}
            for source, target, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(source, target, answers), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if answers and self._loses():
                    break
                if answers:
                    time.sleep(self.delay_s)
                target.sendall(data)
        except OSError:
            pass  # the other side ended it
        finally:
            _end(source)
            _end(target)

    def _loses(self) -> bool:
        with self._lock:
            if not self.losing:
                return False
            self.losing -= 1
            self.lost += 1
            return True


def _end(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
    peer.close()
