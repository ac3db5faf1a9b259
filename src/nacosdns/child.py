"""What every child does alike: be born from a descriptor, say that it lives, hear the supervisor, drain, die with it.

Must not know: what a keeper, a front or a web does. Rules: the channel's end is the end of the process, at once; only
the channel (and SIGTERM, which drains) ends a child in order; ``gc.freeze`` when set up, and no collection of the
oldest generation in a front.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec

from nacosdns import config as configuration
from nacosdns.core import frames, metrics
from nacosdns.core.printable import printable
from nacosdns.edge import logs, standing
from nacosdns.edge.clock import HostClock, until_next
from nacosdns.edge.page import Page, State
from nacosdns.errors import ControlError, NacosdnsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.config import Config
    from nacosdns.ports import Log

BEAT_S = 0.4
"""Two are missed before one is a second late, and each is a wake-up."""
IDLE_BEAT_S = {"front": 0.5, "keeper": 1.0, "web": 1.0}
"""Of who reads no socket: each beat is a wake-up, and core/watch.py is patient with keeper and web."""
STEP_BACK = {"front": (0, 0), "keeper": (200, 5), "web": (400, 10)}
"""By how much each goes behind the supervisor: OOM score, and nice. Who answers is the last to be killed or to wait."""
ANSWER_DEADLINE_S = 1.0
ANSWER_BYTES_MAX = frames.CHANNEL_BYTES_MAX - 1024
"""And a frame around it: the supervisor takes a longer one for madness and hangs up, which ends us."""
SIGTERM_DRAIN_S = 2.0
REASON_CHARS_MAX = 300
_PACKAGE = f"{os.sep}{__package__}{os.sep}"
_DRAIN_GRACE_S = 0.2
_NEVER = 2**31 - 1


class Conductor(Protocol):
    """One kind of child. Made with the ``Child`` as its only argument, on the running loop."""

    async def run(self) -> None:
        """Works until cancelled; calls ``child.ready()`` when set up. One TaskGroup inside."""

    def configure(self, config: Config, password: str) -> None:
        """A new configuration, already checked; ``child.config`` and ``child.password`` are the new ones by now."""

    def activate(self, slots: tuple[int, ...]) -> None:
        """Fronts: read the sockets of exactly these slots from now on."""

    async def drain(self, deadline_s: float) -> None:
        """Finishes what is in hand and saves; then ``run`` is cancelled and the process exits 0."""

    async def answer(self, verb: str, arguments: dict[str, object]) -> object:
        """Answers a control request with what msgspec can encode; ControlError says no."""


class Child:
    """What a conductor gets: how it was born, its configuration, and what every child has.

    ``counters`` reach the page with each heartbeat and at ``flush``.
    """

    def __init__(self, setup: frames.ChildSetup) -> None:
        self.setup = setup
        self.config = configuration.decode(setup.config)
        self.password = setup.password
        self.page = Page(setup.page_fd)
        self.counters = metrics.Counters()
        self.clock = HostClock()
        self.log: Log = logs.log()
        self._writer: asyncio.StreamWriter | None = None

    def __repr__(self) -> str:
        return f"<Child {self.setup.role} slot={self.setup.slot} {self.page.state.name.lower()}>"

    def ready(self, services: int = 0) -> None:
        """Everything is imported and set up; a keeper says what it found on disk."""
        gc.collect()
        gc.freeze()
        if self.setup.role == "front":
            young, middle, _ = gc.get_threshold()
            gc.set_threshold(young, middle, _NEVER)
        self.page.state = State.READY
        self.flush()
        self._tell(frames.Ready(services))

    def flush(self) -> None:
        """Adds what was counted since the last time to the page."""
        self.counters.flush_into(self.page.counters)

    def _tell(self, frame: frames.ChannelFrame) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frames.framed(frame))


class _Life:
    """One run of a child: its conductor, its channel, its heartbeat."""

    def __init__(self, child: Child, make: Callable[[Child], Conductor]) -> None:
        self.child = child
        self.make = make
        self.draining = False
        self.reads = False

    async def run(self) -> None:
        child = self.child
        loop = asyncio.get_running_loop()
        channel = socket.socket(fileno=child.setup.channel_fd)
        reader, child._writer = await asyncio.open_unix_connection(sock=channel)  # noqa: SLF001  # the other half of Child
        try:
            await self._live(reader, loop)
        except Exception as error:
            child._tell(frames.Failed(in_a_sentence(error)))  # noqa: SLF001  # likewise
            raise

    async def _live(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        conductor = self.make(self.child)
        self._beat(loop)
        async with asyncio.TaskGroup() as group:
            work = group.create_task(conductor.run())
            hearing = group.create_task(self._hear(reader, conductor, work, group))
            work.add_done_callback(lambda _: hearing.cancel())
            loop.add_signal_handler(
                signal.SIGTERM, lambda: group.create_task(self._drain(conductor, work, SIGTERM_DRAIN_S))
            )

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.child.page.beat(self.child.clock.now_ns())
        self.child.flush()
        period_s = BEAT_S if self.reads else IDLE_BEAT_S[self.child.setup.role]
        loop.call_later(until_next(loop.time(), period_s), self._beat, loop)

    async def _hear(
        self,
        reader: asyncio.StreamReader,
        conductor: Conductor,
        work: asyncio.Task[None],
        group: asyncio.TaskGroup,
    ) -> None:
        """Frames of the supervisor, one by one, for ever; its end is ours."""
        while True:
            match await _read_frame(reader):
                case None:
                    os._exit(0)  # the supervisor is gone: another one may want our sockets' port
                case frames.Configure(config=config, password=password):
                    self._configure(conductor, configuration.decode(config), password)
                case frames.Activate(slots=slots):
                    self.reads = bool(slots)
                    conductor.activate(slots)
                case frames.Drain(deadline_s=deadline_s):
                    group.create_task(self._drain(conductor, work, deadline_s))
                case frames.Ask() as ask:
                    group.create_task(self._answer(conductor, ask))
                case frames.Ready() | frames.Failed() | frames.Told() as frame:
                    self.child.log.warning("channel.unexpected", frame=type(frame).__name__)

    def _configure(self, conductor: Conductor, config: Config, password: str) -> None:
        self.child.config = config
        self.child.password = password
        logs.configure(config.log.level, role=self.child.setup.role, slot=self.child.setup.slot)
        conductor.configure(config, password)

    async def _drain(self, conductor: Conductor, work: asyncio.Task[None], deadline_s: float) -> None:
        if self.draining:
            return
        self.draining = True
        self.child.page.state = State.DRAINING
        try:
            async with asyncio.timeout(deadline_s + _DRAIN_GRACE_S):
                await conductor.drain(deadline_s)
        except TimeoutError:
            self.child.log.warning("drain.late", deadline_s=deadline_s)
        finally:
            work.cancel()

    async def _answer(self, conductor: Conductor, ask: frames.Ask) -> None:
        if ask.until and time.monotonic() > ask.until:
            return  # the command said that we did not answer: it must not be carried out all the same
        arguments = {name: msgspec.msgpack.decode(value) for name, value in ask.arguments.items()}
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                told = _told(ask.id, await conductor.answer(ask.verb, arguments))
        except ControlError as error:
            told = frames.Told(ask.id, error=str(error))
        except TimeoutError:
            told = frames.Told(ask.id, error=f"no answer within {ANSWER_DEADLINE_S:g} s")
        except Exception as error:  # a command must never end the process that answers DNS
            self.child.log.exception("command.failed", verb=ask.verb)
            told = frames.Told(ask.id, error=f"{ask.verb} failed: {type(error).__name__} (see the log)")
        self.child._tell(told)  # noqa: SLF001  # the other half of Child


def _told(number: int, answer: object) -> frames.Told:
    body = frames.encode(answer)
    if len(body) > ANSWER_BYTES_MAX:
        return frames.Told(number, error=f"the answer is too long ({len(body) >> 20} MiB) to be told")
    return frames.Told(number, msgspec.Raw(body))


async def _read_frame(reader: asyncio.StreamReader) -> frames.ChannelFrame | None:
    """The next frame; None at the end of the channel."""
    try:
        size = int.from_bytes(await reader.readexactly(frames.LENGTH_BYTES), "big")
        return frames.decode_channel(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def read_setup(fd: int) -> frames.ChildSetup:
    """The setup that the supervisor left in this descriptor, which is closed."""
    setup = _setup_in(fd)
    os.close(fd)
    return setup


def _setup_in(fd: int) -> frames.ChildSetup:
    return msgspec.msgpack.decode(os.pread(fd, os.fstat(fd).st_size, 0), type=frames.ChildSetup)


def enter() -> NoReturn:
    """The door of ``python -m nacosdns.child MODULE FD``: what keeps MODULE from its life in ``main`` is its last word."""
    module = sys.argv.pop(1)
    setup_fd = int(sys.argv[1])
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:  # noqa: BLE001  # whatever its import meets; main() ends the process by itself
        _fail_to_start(_setup_in(setup_fd), error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
    sys.exit(1)  # a module without a life


def _fail_to_start(setup: frames.ChildSetup, error: Exception) -> None:
    """Tells the log and the supervisor; there is no child yet to do it."""
    reason = in_a_sentence(error)
    logs.configure(configuration.decode(setup.config).log.level, role=setup.role, slot=setup.slot)
    logs.log().error("child.failed", reason=reason)
    with socket.socket(fileno=setup.channel_fd) as channel, contextlib.suppress(OSError):
        channel.sendall(frames.framed(frames.Failed(reason)))


def main(make: Callable[[Child], Conductor]) -> None:
    """The whole life of a child process: ``python -m MODULE FD``. Never returns; exits 0 after a drain, 1 on a fault.

    ``enter`` stands before it, but for a supervisor of an older release.
    """
    setup = read_setup(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor tells us what to do
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # `systemctl kill` may reach us too
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # one born in the middle of an upgrade inherits what that holds back
    standing.die_with_the_parent()
    standing.call_me(f"nacosdns-{setup.role}{setup.slot if setup.role == 'front' else ''}")
    standing.step_back(*STEP_BACK[setup.role])
    child = Child(setup)
    logs.configure(child.config.log.level, role=setup.role, slot=setup.slot)
    child.page.clear(metrics.gauge_cells())
    try:
        with asyncio.Runner(loop_factory=_loop_factory(setup.role)) as runner:
            runner.run(_Life(child, make).run())
    except Exception as error:
        if isinstance(_root(error), OSError | NacosdnsError):
            child.log.error("child.failed", reason=in_a_sentence(error))
        else:
            child.log.exception("child.failed", reason=in_a_sentence(error))
        _end(child, 1)
    _end(child, 0)


def _root(error: BaseException) -> BaseException:
    """The first of those that ended a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def in_a_sentence(error: BaseException) -> str:
    """What it is, and the line of ours that it came from; an error of ours says all by itself."""
    root = _root(error)
    if isinstance(root, NacosdnsError) and str(root):
        return printable(str(root))[:REASON_CHARS_MAX]
    ours = [frame for frame in traceback.extract_tb(root.__traceback__) if _PACKAGE in frame.filename]
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    return f"{type(root).__name__}: {printable(str(root))[:REASON_CHARS_MAX]}{where}"


def _end(child: Child, code: int) -> NoReturn:
    """Threads of libraries (granian's, gRPC's) may still run: the interpreter is not taken down under them, or they panic."""
    child.flush()
    sys.stderr.flush()
    os._exit(code)


def _loop_factory(role: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The uvloop of a front, where it is installed; else asyncio's own."""
    if role != "front":
        return None
    try:
        import uvloop  # noqa: PLC0415  # it costs a keeper memory, and need not exist
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    enter()
