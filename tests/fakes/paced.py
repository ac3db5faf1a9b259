"""A client that asks at a steady rate, whatever happens to the server, and knows of each query whether it was answered."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from fakes.running import packet

if TYPE_CHECKING:
    from collections.abc import Iterable


class Asked(NamedTuple):
    """One query: when it was sent, and its answer; None while there is none."""

    sent_at: float
    reply: bytes | None


class Paced:
    """Asks these names in turn, ``per_second`` queries in all, until the end of the block; then waits for late answers."""

    def __init__(self, port: int, names: Iterable[str], *, per_second: int, patience_s: float = 2.0) -> None:
        self._to = ("127.0.0.1", port)
        self._questions = [packet(name)[2:] for name in names]
        self._every_s = 1 / per_second
        self._patience_s = patience_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: list[float] = []
        self.replies: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def asked(self) -> list[Asked]:
        """Every query in the order in which they were sent."""
        return [Asked(at, self.replies.get(number)) for number, at in enumerate(self.sent)]

    def lost(self) -> list[Asked]:
        """Those without an answer."""
        return [one for one in self.asked() if one.reply is None]

    def _run(self) -> None:
        """An unconnected socket: a port that nobody listens on is a lost query and no error."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            due = time.monotonic()
            while not self._stop.is_set():
                now = time.monotonic()
                while due <= now:
                    self._send(sock)
                    due += self._every_s
                self._take(sock, max(0.0, due - time.monotonic()))
            end = time.monotonic() + self._patience_s
            while len(self.replies) < len(self.sent) and time.monotonic() < end:
                self._take(sock, 0.05)

    def _send(self, sock: socket.socket) -> None:
        number = len(self.sent)
        question = self._questions[number % len(self._questions)]
        self.sent.append(time.monotonic())
        sock.sendto((number & 0xFFFF).to_bytes(2, "big") + question, self._to)

    def _take(self, sock: socket.socket, wait_s: float) -> None:
        if not select.select([sock], [], [], wait_s)[0]:
            return
        while True:
            try:
                reply = sock.recv(4096)
            except BlockingIOError:
                return
            newest = len(self.sent) - 1
            number = (newest & ~0xFFFF) | int.from_bytes(reply[:2], "big")
            self.replies[number if number <= newest else number - 0x10000] = reply
