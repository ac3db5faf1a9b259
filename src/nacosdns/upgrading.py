"""An upgrade while the bridge answers: the new code is checked and tried, takes our place, and replaces our children.

Must not know: what the children do. Rules: whatever can fail is tried before execv, after which there is no way back; a
failed step leaves the running bridge as it was and says why; one upgrade at a time; the pid and every socket stay.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import msgspec

from nacosdns.children import held_process
from nacosdns.core import frames, handover, watch
from nacosdns.core.handover import HeldChild, Upgrade
from nacosdns.edge import canary, logs, page, process, sockets, standing
from nacosdns.edge.clock import HostClock
from nacosdns.edge.page import Page, Role
from nacosdns.errors import ControlError, StartError, UpgradeError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, MutableMapping
    from types import TracebackType

    from nacosdns.children import Children
    from nacosdns.core.handover import Checked, Handover
    from nacosdns.core.watch import Watch
    from nacosdns.edge.process import Process
    from nacosdns.edge.sockets import Listeners
    from nacosdns.ports import Log

ENVIRONMENT = "NACOSDNS_UPGRADE"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
CHECK_S = 30.0
START_S = 30.0
CANARY_S = 5.0
BEAT_S = 1.5
QUIET_S = 1.2
REPLACE_S = 60.0
_POLL_S = 0.05
_TRIAL_SLOT = 1000
_NS = 1_000_000_000


class Errand(NamedTuple):
    """What a process was started for by a running bridge: to take its place, or to be checked (``result_fd`` >= 0)."""

    state_fd: int
    result_fd: int = -1


def errand(environment: MutableMapping[str, str]) -> Errand | None:
    """The errand of this process, taken out of the environment; None for a bridge that starts by itself."""
    words = environment.pop(ENVIRONMENT, "").split()
    match words:
        case ["take", state_fd]:
            return Errand(int(state_fd))
        case ["check", state_fd, result_fd]:
            return Errand(int(state_fd), int(result_fd))
        case _:
            return None


def read(state_fd: int) -> Handover:
    """What the running bridge left in this descriptor, which is closed. ValueError when it is not for us."""
    content = os.pread(state_fd, os.fstat(state_fd).st_size, 0)
    os.close(state_fd)
    try:
        return handover.decode(content)
    except msgspec.MsgspecError as error:
        raise ValueError(f"what the running nacosdns hands over cannot be read: {error}") from error


def take(state_fd: int) -> Handover:
    """What we take the place of; its descriptors are no longer inherited by whom we start."""
    left = read(state_fd)
    for fd in left.descriptors:
        os.set_inheritable(fd, False)
    return left


def hold_signals_back() -> None:
    """What would end a process that cannot hear it yet waits until it can; SIGTERM and SIGINT may end a start."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))


def hear_signals_again() -> None:
    """Lets in what was held back while nobody could hear it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Bridge(Protocol):
    """The running bridge, as much as an upgrade needs of it."""

    listeners: Listeners
    watch: Watch
    children: Children

    @property
    def link_path(self) -> str:
        """Where fronts find the keeper."""

    def hold(self, upgrade: Upgrade, checked: Checked | None, fresh: HeldChild | None) -> Handover:
        """All that outlives us, at this moment; without ``checked`` only to be looked at."""

    @property
    def web_fault(self) -> str:
        """Why web cannot listen, if so: nobody waits for it then."""

    def is_busy(self) -> bool:
        """Whether an operator waits for an answer."""

    def wake(self) -> None:
        """The plan has to be looked at again."""


class Upgrading:
    """The upgrades of one bridge. ``last`` is the present or last one; ``own_rights`` the new code gets too."""

    def __init__(self, bridge: Bridge, last: Upgrade | None, own_rights: int) -> None:
        self.last = last
        self._own_rights = own_rights
        self._bridge = bridge
        self._task: asyncio.Task[None] | None = None
        self._log: Log = logs.log()

    def __repr__(self) -> str:
        return f"<Upgrading {self.last}>"

    def begin(self, group: asyncio.TaskGroup) -> Upgrade:
        """Starts one. ControlError when one is under way, or we are stopping."""
        if self._bridge.watch.stopping:
            raise ControlError("nacosdns is stopping")
        if self.last is not None and not self.last.is_over:
            raise ControlError(f"an upgrade is under way ({self.last.state}); wait for its end")
        number = self.last.number + 1 if self.last else 1
        self.last = Upgrade(number=number, state="checking", started_at=time.time())
        self._log.info("upgrade.began", number=number)
        self._task = group.create_task(self._upgrade())
        return self.last

    def give_up(self, reason: str) -> None:
        """Something came between: whatever was started for the upgrade ends."""
        if self._task is not None and not self._task.done():
            self._task.cancel(reason)

    async def _upgrade(self) -> None:
        try:
            checked = await check(self._bridge.hold(self._now("checking"), None, None), self._own_rights)
            self._now("trying", after=checked.release)
            with Trial(self._bridge, checked) as trial:
                fresh = await trial.prove()
                await self._quiet()
                await self._replace_us(checked, fresh)
        except asyncio.CancelledError as reason:
            self._fail(str(reason))
            raise
        except (UpgradeError, StartError, OSError) as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001  # a fault of ours in an upgrade must never end what answers
            self._log.exception("upgrade.surprise")
            self._fail(f"{type(error).__name__} (see the log)")

    def _now(self, state: str, *, after: str = "") -> Upgrade:
        assert self.last is not None
        self.last = msgspec.structs.replace(self.last, state=state, after=after or self.last.after)
        return self.last

    def _fail(self, reason: str) -> None:
        assert self.last is not None
        self.last = msgspec.structs.replace(self.last, state="failed", reason=reason)
        self._log.error("upgrade.failed", number=self.last.number, reason=reason)

    async def _quiet(self) -> None:
        """Waits a moment for those who wait for an answer of ours."""
        ends = asyncio.get_running_loop().time() + QUIET_S
        while self._bridge.is_busy() and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110  # a second at most
            await asyncio.sleep(_POLL_S)

    async def _replace_us(self, checked: Checked, fresh: Callable[[], HeldChild]) -> None:
        """Signals wait from here on until the new code hears them; what came before is heard by us."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            for _ in range(3):  # the loop hears a signal in one turn and acts in the next
                await asyncio.sleep(0)
            standing.pass_rights(self._own_rights)
            self._bridge.children.drop_heir(watch.WEB_SLOT)
            execute(self._bridge.hold(self._now("replacing"), checked, fresh()))
        finally:
            standing.keep_rights()
            hear_signals_again()

    # --- in the new code

    async def finish(self) -> None:
        """Replaces what the old code started: fronts, then the keeper, then web; the next only after the last."""
        if self.last is None or self.last.state != "replacing":
            return
        for role in ("front", "keeper", "web"):
            self._bridge.watch.renew(role)
            self._bridge.wake()
            if not await self._renewed(role):
                self._fail(f"the new {role} was not ready within {REPLACE_S:g} s; see its lines in the log")
                return
        self._now("done")
        took_s = round(max(0.0, time.time() - self.last.started_at), 1)
        self._log.info("upgrade.done", number=self.last.number, release=self.last.after, took_s=took_s)

    async def _renewed(self, role: str) -> bool:
        """Waits for all of a role, ``REPLACE_S`` for each one; whether all of them came."""
        loop = asyncio.get_running_loop()
        fewest, ends = sys.maxsize, 0.0
        while left := self._bridge.watch.left_to_renew(role):
            if role == "web" and self._bridge.web_fault:
                return True
            if left < fewest:
                fewest, ends = left, loop.time() + REPLACE_S
            if loop.time() > ends:
                return False
            await asyncio.sleep(_POLL_S)
        return True


def command() -> list[str]:
    """How this process was started: the same interpreter, options and arguments."""
    return [sys.executable, *sys.orig_argv[1:]]


async def check(state: Handover, own_rights: int = 0) -> Checked:
    """Has new code check itself, the configuration and what we would hand over. UpgradeError says what is wrong."""
    state_fd, result_fd, words_fd = (
        page.memory_file("check", content) for content in (handover.encode(state), b"", b"")
    )
    try:
        standing.pass_rights(own_rights)  # it tries to bind what is new in the configuration
        try:
            popen = process.start(
                command(),
                {**os.environ, ENVIRONMENT: f"check {state_fd} {result_fd}"},
                inherited=(state_fd, result_fd),
                words_fd=words_fd,
            )
        finally:
            standing.keep_rights()
        outcome = await process.outcome(popen, words_fd, CHECK_S)
        if outcome.status:
            raise UpgradeError(f"the new code failed its self-check: {outcome.words or f'status {outcome.status}'}")
        return handover.decode_checked(os.pread(result_fd, os.fstat(result_fd).st_size, 0))
    except TimeoutError as error:
        raise UpgradeError(f"the self-check of the new code did not end within {CHECK_S:g} s") from error
    except OSError as error:
        raise UpgradeError(f"the new code cannot be started: {error}") from error
    except msgspec.MsgspecError as error:
        raise UpgradeError("what was started in our place is no nacosdns that can be upgraded to") from error
    finally:
        for fd in (state_fd, result_fd, words_fd):
            os.close(fd)


class Trial:
    """A front of the new code beside the others, asked on a socket of its own. It ends with the context."""

    def __init__(self, bridge: Bridge, checked: Checked) -> None:
        self._bridge = bridge
        self._checked = checked
        self._clock = HostClock()
        wards = bridge.watch.wards
        first = watch.FIRST_FRONT_SLOT
        self.slot = next(slot for slot in range(first, first + len(wards) + 1) if slot not in wards)
        spare = bridge.children.pages.get(self.slot)
        self._has_own_page = spare is None
        self._socket, self._endpoint = sockets.private()
        self._page = spare or Page.create()
        self._status: int | None = None
        self._ready = False
        self._process = self._spawn()

    def __repr__(self) -> str:
        return f"<Trial slot={self.slot} ready={self._ready} status={self._status}>"

    def _spawn(self) -> Process:
        sets = (*self._bridge.listeners.sets(), self._own_set(self._socket))
        setup = frames.ChildSetup(
            role="front",
            slot=self.slot,
            channel_fd=-1,
            page_fd=self._page.fd,
            link_path=self._bridge.link_path,
            config=self._checked.config,
            sockets=sets,
        )
        self._page.claim(Role.FRONT, 0, self._clock.now_ns())
        try:
            born = self._bridge.children.births.spawn(
                self._checked.front,
                setup,
                inherited=[self._page.fd, *(fd for one in sets for fd, _ in one.udp + one.tcp)],
                received=self._heard,
                exited=self._exited,
            )
        except OSError:
            self._close()
            raise
        self._page.claim(Role.FRONT, born.pid, self._clock.now_ns())
        return born

    def _own_set(self, udp: socket.socket) -> frames.SocketSet:
        return frames.SocketSet(_TRIAL_SLOT, udp=((udp.fileno(), str(self._endpoint)),))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._close()

    def _close(self) -> None:
        """Its page goes too, unless that was another front's before and still counts for it."""
        self._socket.close()
        self._page.release()
        if self._has_own_page:
            self._page.close()
            os.close(self._page.fd)

    def _heard(self, frame: frames.ChannelFrame) -> None:
        self._ready = self._ready or isinstance(frame, frames.Ready)

    def _exited(self, status: int) -> None:
        self._status = status

    async def prove(self) -> Callable[[], HeldChild]:
        """Waits until the front has shown that it lives and answers; it is a standby then. UpgradeError when not."""
        await self._until(lambda: self._ready, START_S, "was not ready")
        self._process.tell(frames.Activate((_TRIAL_SLOT,)))
        await self._answered()
        await self._until(self._beats, BEAT_S, "has no heartbeat")
        self._process.tell(frames.Activate(()))
        sockets.seal(self._socket)
        return self._hold

    async def _answered(self) -> None:
        ends = asyncio.get_running_loop().time() + CANARY_S
        while not await canary.answered(self._endpoint.host, self._endpoint.port):
            self._check_alive()
            if asyncio.get_running_loop().time() > ends:
                raise UpgradeError(f"the new front did not answer a query within {CANARY_S:g} s")
            await asyncio.sleep(_POLL_S)

    async def _until(self, condition: Callable[[], bool], deadline_s: float, words: str) -> None:
        ends = asyncio.get_running_loop().time() + deadline_s
        while not condition():
            self._check_alive()
            if asyncio.get_running_loop().time() > ends:
                raise UpgradeError(f"the new front {words} within {deadline_s:g} s; see its lines in the log")
            await asyncio.sleep(_POLL_S)

    def _check_alive(self) -> None:
        if self._status is not None:
            raise UpgradeError(f"the new front ended with status {self._status}; see its lines in the log")

    def _beats(self) -> bool:
        return (self._clock.now_ns() - self._page.beat_ns) / _NS < BEAT_S

    def _hold(self) -> HeldChild:
        self._check_alive()
        held = HeldChild(
            slot=self.slot,
            role="front",
            page_fd=self._page.fd,
            phase=watch.Phase.READY.value,
            since=self._clock.now(),
            fresh=True,
        )
        return held_process(held, self._process)


def execute(state: Handover) -> None:
    """Puts the new code in our place, with this state and its descriptors. Returns never, or by OSError."""
    state_fd = page.memory_file("handover", handover.encode(state))
    inherited = (state_fd, *state.descriptors)
    for fd in inherited:
        os.set_inheritable(fd, True)
    sys.stderr.flush()
    try:
        os.execve(sys.executable, command(), {**os.environ, ENVIRONMENT: f"take {state_fd}"})  # noqa: S606  # our own
    finally:
        for fd in inherited:
            os.set_inheritable(fd, False)
        os.close(state_fd)
