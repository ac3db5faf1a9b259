"""The children as the supervisor has them: a page for each slot, the processes, what they were told last.

Must not know: when a child is to start or end (core/watch.py), what it is asked (control.py). Rules: counters outlive the
child that counted; a child that an earlier supervisor started is as good as one of ours; an heir is nobody's child until
it has a slot to itself.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from nacosdns import config as configuration
from nacosdns.core import frames, handover, metrics, watch
from nacosdns.core.watch import Phase, Ward
from nacosdns.edge import logs, standing
from nacosdns.edge.page import Page, Role, State
from nacosdns.edge.process import Process, Taken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nacosdns.config import Config
    from nacosdns.core.handover import Handover, HeldChild
    from nacosdns.core.watch import Watch
    from nacosdns.edge.admin import Listener
    from nacosdns.edge.process import Births
    from nacosdns.edge.sockets import Listeners
    from nacosdns.ports import Clock, Log

_NS = 1_000_000_000
_ANSWERED = range(metrics.QUERIES.first, metrics.QUERIES.first + len(metrics.QUERIES))


@dataclass
class _Heir:
    """Who takes a slot when the one in it has ended. ``then`` is called when it is set up."""

    process: Process
    setup: frames.ChildSetup
    owner: tuple[int, int] | None
    then: Callable[[], None]
    limit: asyncio.TimerHandle
    said: list[frames.ChannelFrame] = field(default_factory=list)

    def hear(self, frame: frames.ChannelFrame) -> None:
        self.said.append(frame)
        if isinstance(frame, frames.Ready):
            self.limit.cancel()
            self.then()

    @property
    def is_ready(self) -> bool:
        return any(isinstance(frame, frames.Ready) for frame in self.said)

    def is_born_with(self, setup: frames.ChildSetup, owner: tuple[int, int] | None) -> bool:
        return (self.setup, self.owner) == (setup, owner)


class Children:
    """``modules`` are the programs by role; ``received`` and ``exited`` are told the slot, and the frame or exit status.

    ``exited`` is told before the process is forgotten; ``kept``: that a process goes on which was to be replaced.
    """

    def __init__(
        self,
        watch_: Watch,
        births: Births,
        modules: Mapping[str, str],
        clock: Clock,
        *,
        received: Callable[[int, frames.ChannelFrame], None],
        exited: Callable[[int, int], None],
        kept: Callable[[], None],
    ) -> None:
        self.births = births
        self.modules = modules
        self.pages: dict[int, Page] = {}
        self._watch = watch_
        self._received = received
        self._exited = exited
        self._kept = kept
        self._clock = clock
        self._processes: dict[int, Process] = {}
        self._heirs: dict[int, _Heir] = {}
        self._told: dict[int, Config] = {}
        self._words: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._born: set[int] = set()
        self._foreign: set[int] = set()
        self._log: Log = logs.log()

    def __repr__(self) -> str:
        return f"<Children {self._processes}>"

    @property
    def own(self) -> Page:
        """The page of the supervisor itself."""
        return self.pages[watch.SUPERVISOR_SLOT]

    @property
    def slots(self) -> set[int]:
        """Where a process is."""
        return set(self._processes)

    def make_pages(self) -> bool:
        """A page for every slot that lacks one; whether there are new ones, which web does not have yet."""
        missing = {watch.SUPERVISOR_SLOT, *self._watch.wards} - self.pages.keys()
        for slot in missing:
            self.pages[slot] = Page.create()
        return bool(missing)

    # --- life

    def setup(
        self,
        slot: int,
        config: Config,
        *,
        password: str,
        listeners: Listeners,
        link: Listener,
        web: socket.socket | None,
    ) -> tuple[frames.ChildSetup, list[int]]:
        """What the child of a slot is born with, and the descriptors that it inherits."""
        own = self.pages[slot].fd
        setup = frames.ChildSetup(
            role=self._watch.wards[slot].role,
            slot=slot,
            channel_fd=-1,
            page_fd=own,
            link_path=str(link.path),
            config=configuration.encode(config),
        )
        match setup.role:
            case "keeper":
                setup = msgspec.structs.replace(setup, link_fd=link.fileno(), password=password)
                return setup, [own, link.fileno()]
            case "front":
                sets = listeners.sets()
                inherited = [fd for one in sets for fd, _ in one.udp + one.tcp]
                return msgspec.structs.replace(setup, sockets=sets), [own, *inherited]
            case _:
                fds = tuple(self.pages[n].fd if n in self.pages else -1 for n in range(max(self.pages) + 1))
                own_socket = ((web.fileno(), config.web.listen),) if web else ()
                sets = (frames.SocketSet(slot, tcp=own_socket),)
                inherited = [fd for fd in (*fds, *(fd for fd, _ in own_socket)) if fd >= 0]
                return msgspec.structs.replace(setup, pages=fds, sockets=sets), inherited

    def spawn(self, slot: int, setup: frames.ChildSetup, inherited: list[int], now_ns: int) -> None:
        """Starts the child of a slot, if no heir of the same setup waits. OSError says it cannot be."""
        role = Role[setup.role.upper()]
        heir = self._heirs.get(slot)
        if heir and heir.is_born_with(setup, self.births.owner):
            self._succeed(slot, heir, role, now_ns)
            return
        self.drop_heir(slot)
        self.pages[slot].claim(role, 0, now_ns)
        process = self._birth(slot, setup, inherited)
        self.pages[slot].claim(role, process.pid, now_ns)
        self._processes[slot] = process
        self._log.info("child.started", **self.who(slot))

    def _birth(self, slot: int, setup: frames.ChildSetup, inherited: list[int]) -> Process:
        """A process whose words and end reach the slot, or the heir that it is; nobody when it is neither any more."""

        def received(frame: frames.ChannelFrame) -> None:
            heir = self._heirs.get(slot)
            if heir and heir.process is process:
                heir.hear(frame)
            elif self._processes.get(slot) is process:
                self._hear(slot, frame)

        def exited(status: int) -> None:
            heir = self._heirs.get(slot)
            if heir and heir.process is process:
                self._heir_ended(slot, heir, status)
            elif self._processes.get(slot) is process:
                self._gone(slot, status)

        module = self.modules[setup.role]
        process = self.births.spawn(module, setup, inherited=inherited, received=received, exited=exited)
        return process

    def _hear(self, slot: int, frame: frames.ChannelFrame) -> None:
        if isinstance(frame, frames.Failed):
            self._words[slot] = frame.reason
            return
        self._received(slot, frame)

    # --- two in a slot

    def replace(self, slot: int, make: Callable[[int], tuple[frames.ChildSetup, list[int]]], deadline_s: float) -> None:
        """Starts the next one of a slot beside the one in it, which is told to finish when the next one is set up.

        ``make`` is ``setup`` for a slot. For a moment both write the page, in which each adds what it counted.
        """
        try:
            setup, inherited = make(slot)
            process = self._birth(slot, setup, inherited)
        except OSError as error:
            self.not_started(slot, error)
            self._keep(slot)
            return
        limit = asyncio.get_running_loop().call_later(watch.START_DEADLINE_S, process.kill)
        then = functools.partial(self.drain, slot, deadline_s)
        self._heirs[slot] = _Heir(process, setup, self.births.owner, then, limit)
        self._log.info("child.started", child=setup.role, slot=slot, pid=process.pid)

    def _heir_ended(self, slot: int, heir: _Heir, status: int) -> None:
        words = [frame.reason for frame in heir.said if isinstance(frame, frames.Failed)]
        reason = self._reasons[slot] = _reason(status, words[-1] if words else "")
        self._log.warning(
            "child.exited", child=heir.setup.role, slot=slot, pid=heir.process.pid, status=status, reason=reason
        )
        self.drop_heir(slot)
        if not heir.is_ready:  # else the one before it was told to finish already
            self._keep(slot)

    def _keep(self, slot: int) -> None:
        self._watch.kept(slot, self._clock.now())
        self._kept()

    def waits_for_heir(self, slot: int) -> bool:
        """Whether the next one of a slot is on its way and not set up yet."""
        return slot in self._heirs and not self._heirs[slot].is_ready

    def drop_heir(self, slot: int) -> None:
        """Ends the next one of a slot, if there is one: in order, for it may have begun to answer."""
        if heir := self._heirs.pop(slot, None):
            heir.limit.cancel()
            heir.process.tell(frames.Drain(watch.DRAIN_S))
            asyncio.get_running_loop().call_later(watch.DRAIN_S + watch.DRAIN_GRACE_S, heir.process.kill)

    def _succeed(self, slot: int, heir: _Heir, role: Role, now_ns: int) -> None:
        del self._heirs[slot]
        heir.limit.cancel()
        self._processes[slot] = heir.process
        self.pages[slot].claim(role, heir.process.pid, now_ns)
        if heir.is_ready:
            self.pages[slot].state = State.READY
        for frame in heir.said:
            asyncio.get_running_loop().call_soon(self._received, slot, frame)

    def is_first(self, slot: int) -> bool:
        """Whether no child was ever started in this slot; one is from now on."""
        first = slot not in self._born
        self._born.add(slot)
        return first

    @property
    def none_was_told(self) -> bool:
        """Whether no child was ever started."""
        return not self._told

    def not_started(self, slot: int, error: OSError) -> None:
        """The system starts no process for this slot."""
        self._reasons[slot] = f"cannot be started: {error.strerror or error}"
        self._log.error("child.not_started", **self.who(slot), reason=str(error))

    def fresh_page(self, slot: int) -> None:
        """Before a birth: replaces a page whose counters another release laid out otherwise."""
        if slot in self._foreign:
            fresh, old = Page.create(), self.pages[slot]
            self.pages[slot] = fresh
            self._foreign.discard(slot)
            old.close()
            os.close(old.fd)

    def _gone(self, slot: int, status: int) -> None:
        self._exited(slot, status)
        self._processes.pop(slot).hang_up()
        self.pages[slot].release()
        self.pages[slot].clear(metrics.gauge_cells())
        if slot not in self._watch.wards:
            self.drop_heir(slot)

    def kill(self, slot: int, reason: str) -> None:
        """Ends a child now."""
        if slot in self._processes:
            self._log.warning("child.killed", **self.who(slot), reason=reason)
            self._words[slot] = f"killed: {reason}"
            self._processes[slot].kill()

    def kill_all(self) -> None:
        """Ends every child now."""
        for process in (*self._processes.values(), *(heir.process for heir in self._heirs.values())):
            process.kill()

    # --- talking

    def tell(self, slot: int, frame: frames.ChannelFrame) -> bool:
        """Sends a frame; whether there is somebody to send it to."""
        return slot in self._processes and self._processes[slot].tell(frame)

    def drain(self, slot: int, deadline_s: float) -> None:
        """Tells a child to finish and exit; its time for that begins now."""
        if slot in self._watch.wards:
            self._watch.drained(slot, self._clock.now())
            self.tell(slot, frames.Drain(deadline_s))

    def configure(self, slot: int, config: Config, password: str) -> None:
        """Tells a child the present configuration, and a keeper the password."""
        secret = password if self._watch.wards[slot].role == "keeper" else ""
        if self.tell(slot, frames.Configure(configuration.encode(config), secret)):
            self._told[slot] = config

    def told(self, slot: int, config: Config) -> None:
        """A child was born with this configuration."""
        self._told[slot] = config

    def knows(self, slot: int, config: Config) -> bool:
        """Whether this is the configuration that the child was told last."""
        return self._told.get(slot) is config

    # --- looking

    def who(self, slot: int) -> dict[str, str | int]:
        """Which child, for a log line."""
        process = self._processes.get(slot)
        return {"child": self._watch.wards[slot].role, "slot": slot, "pid": process.pid if process else 0}

    def end_of(self, slot: int, status: int) -> dict[str, str | int]:
        """Which child, and how it ended, for a log line: our word or its own, or what the status says."""
        word = self._reasons[slot] = _reason(status, self._words.pop(slot, ""))
        return {**self.who(slot), "status": status} | ({"reason": word} if word else {})

    def ages_s(self, now_ns: int) -> dict[int, float]:
        """The age of every heartbeat."""
        return {slot: max(0, now_ns - self.pages[slot].beat_ns) / _NS for slot in self._processes}

    def answers(self) -> dict[int, int]:
        """How many queries each front that reads sockets has answered."""
        readers = [slot for slot, ward in self._watch.wards.items() if ward.reads]
        return {slot: sum(self.pages[slot].counters[index] for index in _ANSWERED) for slot in readers}

    def describe(self, now_ns: int) -> list[dict[str, object]]:
        """Every slot, for `nacosdns status`."""
        ages_s = self.ages_s(now_ns)
        return [
            {
                "role": ward.role,
                "slot": slot,
                "pid": self._processes[slot].pid if slot in self._processes else 0,
                "phase": self._phase(ward, ages_s),
                "stopped": self._hangs(ward, ages_s) and standing.is_stopped(self._processes[slot].pid),
                "sockets": list(ward.reads),
                "beat_age_s": ages_s.get(slot, max(0, now_ns - self.pages[slot].beat_ns) / _NS),
                "failures": ward.failures,
                "reason": self._reasons.get(slot, ""),
            }
            for slot, ward in sorted(self._watch.wards.items())
        ]

    @staticmethod
    def _hangs(ward: Ward, ages_s: Mapping[int, float]) -> bool:
        return ward.phase is Phase.READY and ages_s.get(ward.slot, 0.0) > watch.DOUBTFUL_S

    def _phase(self, ward: Ward, ages_s: Mapping[int, float]) -> str:
        return "hangs" if self._hangs(ward, ages_s) else ward.phase.value

    # --- an upgrade

    def hold(self) -> tuple[HeldChild, ...]:
        """What another program needs to go on with these children; it has to inherit pages and channels."""
        return tuple(self._hold(ward) for ward in self._watch.wards.values())

    def _hold(self, ward: Ward) -> HeldChild:
        held = handover.HeldChild(
            slot=ward.slot,
            role=ward.role,
            page_fd=self.pages[ward.slot].fd,
            phase=ward.phase.value,
            reads=ward.reads,
            failures=ward.failures,
            since=ward.since,
            due_at=ward.due_at,
        )
        process = self._processes.get(ward.slot)
        return held_process(held, process) if process else held

    def spare_pages(self) -> dict[int, int]:
        """The pages of slots that are no longer used, by descriptor: their counters still count."""
        return {slot: page.fd for slot, page in self.pages.items() if slot and slot not in self._watch.wards}

    def adopt(self, left: Handover, now: float, config: Config) -> None:
        """Goes on with the children of an earlier supervisor, as if we had started them."""
        self.pages[watch.SUPERVISOR_SLOT] = Page(left.own_page_fd)
        self.pages |= {slot: Page(fd) for slot, fd in left.pages.items()}
        wards = []
        for held in left.children:
            self.pages[held.slot] = Page(held.page_fd)
            self._born.add(held.slot)
            wards.append(
                Ward(
                    held.slot,
                    held.role,
                    held.due_at,
                    phase=Phase(held.phase),
                    reads=held.reads,
                    failures=held.failures,
                    since=held.since,
                )
            )
        if not handover.has_counters_of(left.counters):
            self._foreign = set(self.pages)
            for slot in {watch.SUPERVISOR_SLOT, *left.pages}:
                self.pages[slot].clear(tuple(range(len(self.pages[slot].counters))))
        fresh = [held.slot for held in left.children if held.fresh]
        self._watch.adopt(wards, fresh, now, web=bool(config.web.listen))
        for held in left.children:
            if held.pid:
                self._told[held.slot] = config  # it is replaced soon, by one that knows it
                self._adopt(held)

    def _adopt(self, held: HeldChild) -> None:
        slot = held.slot
        channel = socket.socket(fileno=held.channel_fd) if held.channel_fd >= 0 else socket.socketpair()[0]
        process = Process(
            Taken(held.pid),
            channel,
            lambda frame: self._hear(slot, frame),
            lambda status: self._gone(slot, status),
        )
        self._processes[slot] = process
        process.resume(held.unread, held.unsent)


def _reason(status: int, word: str) -> str:
    """Of what a process ended: our word or its own, or what the status says; "" when it ended well."""
    if status == 0:
        return ""
    if status < 0:
        return word or f"ended by {_signal_name(-status)}"
    return word or f"exit status {status} without a word: see the lines before child.exited in the log"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def held_process(held: HeldChild, process: Process) -> HeldChild:
    """A slot as it is handed over, with the process in it."""
    return msgspec.structs.replace(
        held,
        pid=process.pid,
        channel_fd=process.fileno(),
        unread=bytes(process.unread),
        unsent=bytes(process.unsent),
    )
