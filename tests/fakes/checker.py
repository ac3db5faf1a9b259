"""A client that asks all the time and knows the truth: counts right, wrong, empty, failed and lost answers.

Runs as its own process (``python -m fakes.checker``) or inside a test by ``Checker``. Bounded in rate and time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import dnslib

LOST_AFTER_S = 3.0
RECEIVE_BYTES = 4 << 20


@dataclass
class Report:
    """``wrong``: an address outside the truth; ``empty``: NOERROR or NXDOMAIN without one; ``few``: fewer than asked."""

    sent: int = 0
    right: int = 0
    wrong: int = 0
    empty: int = 0
    few: int = 0
    failed: int = 0
    lost: int = 0
    slowest_ms: float = 0.0
    fewest: int = 1 << 30
    samples: list[str] = field(default_factory=list)

    def note(self, word: str, detail: str) -> None:
        """Counts, and keeps the first few details."""
        setattr(self, word, getattr(self, word) + 1)
        if word != "right" and len(self.samples) < 10:
            self.samples.append(f"{word}: {detail}")


class Checker(asyncio.DatagramProtocol):
    """Asks ``names`` in turn at ``rate`` a second; each answer must be a part of ``truth`` with ``at_least`` addresses."""

    def __init__(self, names: list[str], truth: set[str], rate: float, at_least: int = 1) -> None:
        self.report = Report()
        self._questions = [bytes(dnslib.DNSRecord.question(name).pack())[2:] for name in names]
        self._truth = {socket.inet_aton(address) for address in truth}
        self._rate = rate
        self._at_least = at_least
        self._sent: dict[int, float] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self._began = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)  # a late turn of ours must lose no answer

    def datagram_received(self, data: bytes, addr: object) -> None:
        now = time.monotonic()
        at = self._sent.pop(int.from_bytes(data[:2], "big"), None)
        if at is None:
            return
        self.report.slowest_ms = max(self.report.slowest_ms, (now - at) * 1000)
        self._judge(data, f"{now - self._began:.2f}s")

    def error_received(self, exc: Exception) -> None:
        self.report.note("failed", f"{time.monotonic() - self._began:.2f}s {exc}")

    def _judge(self, data: bytes, when: str) -> None:
        report = self.report
        rcode, answers = data[3] & 15, int.from_bytes(data[6:8], "big")
        addresses = _addresses(data, answers)
        if rcode not in {0, 3}:
            report.note("failed", f"{when} rcode {rcode}")
        elif not addresses:
            report.note("empty", f"{when} rcode {rcode}")
        elif not addresses <= self._truth:
            report.note("wrong", f"{when} {sorted(map(socket.inet_ntoa, addresses - self._truth))}")
        elif len(addresses) < self._at_least:
            report.fewest = min(report.fewest, len(addresses))
            report.note("few", f"{when} {len(addresses)}")
        else:
            report.fewest = min(report.fewest, len(addresses))
            report.note("right", when)

    async def run(self, seconds: float) -> Report:
        """Asks for this long, waits for what is under way, and reports."""
        loop = asyncio.get_running_loop()
        began, number = loop.time(), 0
        while (now := loop.time()) - began < seconds:
            while number < (now - began) * self._rate:
                self._ask(number)
                number += 1
            await asyncio.sleep(0.002)
        ends = loop.time() + LOST_AFTER_S
        while self._sent and loop.time() < ends:
            await asyncio.sleep(0.02)
        self.report.lost = len(self._sent)
        return self.report

    def _ask(self, number: int) -> None:
        assert self._transport is not None
        key = number & 0xFFFF
        if key in self._sent:
            self.report.note("lost", "its number came round again")
        self._sent[key] = time.monotonic()
        self.report.sent += 1
        self._transport.sendto(struct.pack("!H", key) + self._questions[number % len(self._questions)])


def _addresses(data: bytes, answers: int) -> set[bytes]:
    at = 12
    while data[at]:
        at += data[at] + 1
    at += 5
    found = set()
    for _ in range(answers):
        while data[at] and data[at] < 0xC0:
            at += data[at] + 1
        at += 2 if data[at] >= 0xC0 else 1
        kind, _, _, size = struct.unpack_from("!HHIH", data, at)
        at += 10
        if kind == 1:
            found.add(data[at : at + size])
        at += size
    return found


async def check(
    port: int,
    names: list[str],
    truth: set[str],
    *,
    rate: float,
    seconds: float,
    at_least: int = 1,
    host: str = "127.0.0.1",
) -> Report:
    """One run against a server on loopback."""
    loop = asyncio.get_running_loop()
    transport, checker = await loop.create_datagram_endpoint(
        lambda: Checker(names, truth, rate, at_least), remote_addr=(host, port)
    )
    try:
        return await checker.run(seconds)
    finally:
        transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("names")
    parser.add_argument("truth")
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--at-least", type=int, default=1)
    options = parser.parse_args()
    report = asyncio.run(
        check(
            options.port,
            options.names.split(","),
            set(options.truth.split(",")),
            rate=options.rate,
            seconds=options.seconds,
            at_least=options.at_least,
        )
    )
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    main()
