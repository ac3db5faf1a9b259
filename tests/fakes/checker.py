"""A client that asks all the time and knows the truth: counts right, wrong, empty, few, failed and lost answers.

Inside a test by ``check``; as a process of its own by ``python -m fakes.checker PORT RATE SECONDS [HOST]``, which reads lines of
JSON from its input, ``{"name", "truth", "at_least", "rcode"}``, each a question or a new truth of one, begins at the line
``go``, ends at the end of its input or of the seconds, and prints its report as JSON. Bounded in rate and time.
"""

from __future__ import annotations

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
SAMPLES_MAX = 10


@dataclass
class Question:
    """``truth``: the addresses that an answer may hold, of which it must hold ``at_least`` so many; 0: it must have none."""

    name: str
    truth: frozenset[bytes]
    at_least: int = 1
    rcode: int = 0
    packet: bytes = b""

    @classmethod
    def of(cls, name: str, truth: list[str], at_least: int = 1, rcode: int = 0) -> Question:
        packed = bytes(dnslib.DNSRecord.question(name).pack())[2:]
        return cls(name, frozenset(map(socket.inet_aton, truth)), at_least if truth else 0, rcode, packed)


@dataclass
class Report:
    """What was answered, in counts.

    ``wrong``: an address outside the truth or a false denial; ``empty``: NOERROR or NXDOMAIN without an address; ``few``:
    fewer than asked; ``failed``: SERVFAIL and other rcodes, and errors of the socket. ``longest_gap_ms`` is the longest time
    without a right answer.
    """

    sent: int = 0
    right: int = 0
    wrong: int = 0
    empty: int = 0
    few: int = 0
    failed: int = 0
    lost: int = 0
    slowest_ms: float = 0.0
    longest_gap_ms: float = 0.0
    fewest: int = 1 << 30
    samples: list[str] = field(default_factory=list)

    def note(self, word: str, detail: str) -> None:
        """Counts, and keeps the first few details."""
        setattr(self, word, getattr(self, word) + 1)
        if word != "right" and len(self.samples) < SAMPLES_MAX:
            self.samples.append(f"{word}: {detail}")


class Checker(asyncio.DatagramProtocol):
    """Asks the questions in turn at ``rate`` a second."""

    def __init__(self, questions: list[Question], rate: float) -> None:
        self.report = Report()
        self.questions = questions
        self._rate = rate
        self._sent: dict[int, tuple[float, Question]] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self._began = self._right_at = time.monotonic()
        self.ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)  # a late turn of ours must lose no answer

    def datagram_received(self, data: bytes, addr: object) -> None:
        now = time.monotonic()
        at, question = self._sent.pop(int.from_bytes(data[:2], "big"), (0.0, None))
        if question is None:
            return
        self.report.slowest_ms = max(self.report.slowest_ms, (now - at) * 1000)
        word, detail = judge(data, question)
        self.report.note(word, f"{now - self._began:.2f}s {question.name} {detail}")
        if word == "right":
            self.report.longest_gap_ms = max(self.report.longest_gap_ms, (now - self._right_at) * 1000)
            self._right_at = now
        if data[3] & 15 in {0, 3} and question.at_least:
            self.report.fewest = min(self.report.fewest, len(addresses_of(data)) or self.report.fewest)

    def error_received(self, exc: Exception) -> None:
        self.report.note("failed", f"{time.monotonic() - self._began:.2f}s {exc}")

    def learn(self, question: Question) -> None:
        """A new question, or a new truth of one; what is under way is judged by the new truth."""
        for known in self.questions:
            if known.name == question.name:
                known.truth, known.at_least, known.rcode = question.truth, question.at_least, question.rcode
                return
        self.questions.append(question)

    async def run(self, seconds: float) -> Report:
        """Asks for this long or until ``ending``, waits for what is under way, and reports."""
        loop = asyncio.get_running_loop()
        began, number = loop.time(), 0
        self._began = self._right_at = time.monotonic()
        while (now := loop.time()) - began < seconds and not self.ending:
            while number < (now - began) * self._rate:
                self._ask(number)
                number += 1
            await asyncio.sleep(0.002)
        self.report.longest_gap_ms = max(self.report.longest_gap_ms, (time.monotonic() - self._right_at) * 1000)
        ends = loop.time() + LOST_AFTER_S
        while self._sent and loop.time() < ends:
            await asyncio.sleep(0.02)
        for at, question in self._sent.values():
            self.report.note("lost", f"{at - self._began:.2f}s {question.name}")
        return self.report

    def _ask(self, number: int) -> None:
        assert self._transport is not None
        key = number & 0xFFFF
        question = self.questions[number % len(self.questions)]
        if key in self._sent:
            self.report.note("lost", f"{question.name}: its number came round again")
        self._sent[key] = (time.monotonic(), question)
        self.report.sent += 1
        self._transport.sendto(struct.pack("!H", key) + question.packet)


def judge(data: bytes, question: Question) -> tuple[str, str]:
    """The word of a reply in the report, and what was seen."""
    rcode, addresses = data[3] & 15, addresses_of(data)
    if rcode not in {0, 3, question.rcode}:
        return "failed", f"rcode {rcode}"
    if not question.at_least:
        return ("right", "") if rcode == question.rcode and not addresses else ("wrong", f"rcode {rcode}")
    if not addresses:
        return "empty", f"rcode {rcode}"
    if not addresses <= question.truth:
        return "wrong", str(sorted(map(socket.inet_ntoa, addresses - question.truth)))
    return ("few" if len(addresses) < question.at_least else "right"), str(len(addresses))


def addresses_of(data: bytes) -> set[bytes]:
    """The IPv4 addresses in the answer section."""
    at = 12
    while data[at]:
        at += data[at] + 1
    at += 5
    found = set()
    for _ in range(int.from_bytes(data[6:8], "big")):
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
    """One run against a server on loopback; all names have the same truth."""
    questions = [Question.of(name, sorted(truth), at_least) for name in names]
    loop = asyncio.get_running_loop()
    transport, checker = await loop.create_datagram_endpoint(lambda: Checker(questions, rate), remote_addr=(host, port))
    try:
        return await checker.run(seconds)
    finally:
        transport.close()


async def main(port: int, rate: float, seconds: float, host: str = "127.0.0.1") -> None:
    """Questions and truths by the input, the report on the output."""
    loop = asyncio.get_running_loop()
    transport, checker = await loop.create_datagram_endpoint(lambda: Checker([], rate), remote_addr=(host, port))
    gone = asyncio.Event()

    def read() -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                loop.call_soon_threadsafe(gone.set)
            else:
                loop.call_soon_threadsafe(checker.learn, Question.of(**json.loads(line)))
        loop.call_soon_threadsafe(end)

    def end() -> None:
        checker.ending = True
        gone.set()

    reading = loop.run_in_executor(None, read)
    await gone.wait()
    report = await checker.run(seconds)
    print(json.dumps(asdict(report)), flush=True)  # noqa: T201 - whoever started it reads that
    transport.close()
    await reading


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))
