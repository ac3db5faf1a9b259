"""How long a push of 1,000 instances keeps a front's loop: what ``bench/storm.py --inside`` prints.

Must not know: Nacos, sockets, processes. The production front takes frames and questions on a loop that notes the CPU
time of each of its turns: so other work on the machine hardly matters.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from typing import TYPE_CHECKING, cast

from measure import question

from nacosdns import config_load
from nacosdns.core.access import Access
from nacosdns.core.balance import BUILT_IN
from nacosdns.core.book import Book
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.frames import Updates, decode_link, encode, known
from nacosdns.core.metrics import Counters
from nacosdns.core.model import Instance, ServiceKey, Snapshot, Source
from nacosdns.edge.clock import HostClock
from nacosdns.edge.logs import log
from nacosdns.edge.udp_base import Client
from nacosdns.front import Front
from nacosdns.front_process import forward_settings, make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from nacosdns.edge.udp import UdpDoor
    from nacosdns.ports import Link

BIG, INSTANCES = 5, 1000
QUESTIONS = 40  # between two pushes
KINDS = {"A": 1, "SRV": 33}


class NotingLoop(asyncio.SelectorEventLoop):
    """Notes in ``took_us`` the CPU time of every call that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.took_us: list[float] = []

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._noted, callback, args, context=context)

    def _noted(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        began = time.thread_time_ns()
        callback(*args)
        self.took_us.append((time.thread_time_ns() - began) / 1000)


class Inside:
    """A front with nobody around it."""

    def __init__(self) -> None:
        config = config_load.load(None, {})
        self._rng = random.Random(5)
        self._book = Book()
        pipeline = make_pipeline(
            config,
            self._book,
            BUILT_IN,
            self._rng,
            allowed=Access(config.server.allow),
            judges=False,
            nameserver="127.0.0.1",
            identity=b"",
        )
        forwarding = Forwarding(forward_settings(config, b""), self._rng)
        self._clock = HostClock()
        self._front = Front(
            pipeline=pipeline,
            book=self._book,
            forwarding=forwarding,
            clock=self._clock,
            counters=Counters(),
            log=log(),
        )
        self._weights = [[float(self._rng.randrange(2, 1000)) for _ in range(INSTANCES)] for _ in range(BIG)]

    def push(self, service: int, revision: int) -> bytes:
        """A frame of the keeper: one weight of this service is another."""
        weights = self._weights[service]
        weights[self._rng.randrange(INSTANCES)] = float(self._rng.randrange(2, 1000))
        instances = tuple(
            Instance(f"10.{service}.{number // 250}.{number % 250 + 1}", 8080, weight)
            for number, weight in enumerate(weights)
        )
        key = ServiceKey("public", "DEFAULT_GROUP", f"big-{service}")
        return encode(Updates((known(Snapshot(key, instances, revision, Source.PUSH, time.time(), live=True)),)))

    def hear(self, frame: bytes) -> None:
        """As the link does it."""
        self._front.heard(cast("Link", None), decode_link(frame))

    def ask(self, packet: bytes) -> None:
        """As a door does it."""
        prepared = self._book.prepared
        prepared.begin(self._clock.now())
        entry = prepared.packets.get(packet[2:])
        reply = prepared.next_reply(entry) if entry is not None else prepared.similar(packet[2:])
        reply = reply or self._front.slow(packet, Client(bytes(16)), cast("UdpDoor", None))
        if not reply:
            raise SystemExit("a question for a known service was not answered")
        prepared.retired.clear()

    def close(self) -> None:
        self._front.close()


async def storm(loop: NotingLoop, inside: Inside, kind: int, pushes: int) -> tuple[list[float], list[float]]:
    """The longest turn of each push and the questions after it, and all of them together, in µs."""
    frames = [inside.push(number % BIG, number + 1) for number in range(pushes + BIG)]
    longest, together = [], []
    for number, frame in enumerate(frames):
        loop.took_us.clear()
        loop.call_soon(inside.hear, frame)
        for _ in range(QUESTIONS):
            loop.call_soon(inside.ask, question(f"big-{number % BIG}.nacos", kind))
            await asyncio.sleep(0)
        longest.append(max(loop.took_us))
        together.append(sum(loop.took_us))
    inside.close()
    return longest[BIG:], together[BIG:]


def measured(pushes: int = 300) -> dict[str, dict[str, int]]:
    """For questions of each type, in µs of CPU time."""
    gc.disable()  # a front collects young objects only, of which there are few
    found = {}
    for word, kind in KINDS.items():
        loop = NotingLoop()
        longest, together = loop.run_until_complete(storm(loop, Inside(), kind, pushes))
        loop.close()
        found[word] = {
            "median": round(statistics.median(longest)),
            "p99": round(statistics.quantiles(longest, n=100)[98]),
            "max": round(max(longest)),
            "together": round(statistics.median(together)),
        }
    return found


def table(found: dict[str, dict[str, int]]) -> str:
    """As it is printed."""
    words = ("median", "p99", "max", "together")
    lines = [f"{'longest turn of a push, µs':<28}" + "".join(f"{word:>10}" for word in words)]
    lines += [f"{kind:<28}" + "".join(f"{row[word]:>10}" for word in words) for kind, row in found.items()]
    return "\n".join([*lines, f"together: a push of {INSTANCES} instances and the {QUESTIONS} questions after it"])
