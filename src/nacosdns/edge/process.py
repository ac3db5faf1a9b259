"""Children as processes: how one is born, spoken to, killed and mourned.

Must not know: what a child does, when to start it again. Rules: a child's secrets travel in a descriptor, never in
argv or the environment; it inherits exactly the descriptors that it is given; its end is noticed by pidfd; what is half
read or half sent can be handed on, so that another program goes on in our place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from nacosdns.core import frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

OUR_ENVIRONMENT = ("NACOSDNS_", "LISTEN_", "WATCHDOG_", "NOTIFY_SOCKET")
"""What only the supervisor may see: the configuration, and what systemd says to it alone."""
_NOT_FOR_CHILDREN = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""A child ignores these, and lets them in, when it is imported: until then they must not end it."""
_DOOR = "nacosdns.child"
_REAP_S = 0.05
_KILL_S = 0.5
_READ_BYTES = 64 * 1024
_WORDS_BYTES = 4000
_PLACE = re.compile(r'\s+File "([^"]+)", line (\d+)')


class Running(Protocol):
    """A child of this process, as subprocess.Popen shows it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The exit status; None while it runs. Negative: the signal that ended it."""


class Taken:
    """``Running`` for a child that was started by the program that we took the place of."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def __repr__(self) -> str:
        return f"<Taken {self.pid} {self.returncode}>"

    def poll(self) -> int | None:
        """As ``Running.poll``; 255 when its status is lost."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = 255
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class Process:
    """One running child. ``received`` gets its frames; ``exited`` is called once, on the loop, with its exit status.

    ``unread`` and ``unsent`` are bytes of the channel that wait for their rest, and for the child.
    """

    def __init__(
        self,
        running: Running,
        channel: socket.socket,
        received: Callable[[frames.ChannelFrame], None],
        exited: Callable[[int], None],
    ) -> None:
        self.pid = running.pid
        self.unread = bytearray()
        self.unsent = bytearray()
        self._running = running
        self._channel = channel
        self._received = received
        self._exited = exited
        self._pidfd = -1
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel, self._read)
        self._watch()

    def __repr__(self) -> str:
        return f"<Process {self.pid}>"

    def fileno(self) -> int:
        """The descriptor of our end of the channel; -1 when that is closed."""
        return self._channel.fileno()

    def resume(self, unread: bytes, unsent: bytes) -> None:
        """Goes on with what was half read and half sent before."""
        self.unread += unread
        self._send(unsent)

    def tell(self, frame: frames.ChannelFrame) -> bool:
        """Sends a frame; whether there is a channel to send it on."""
        if self._channel.fileno() < 0:
            return False
        self._send(frames.framed(frame))
        return True

    def kill(self) -> None:
        """Ends it now (SIGKILL)."""
        if self._running.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Closes our end of the channel: a child that is set up ends by that."""
        if self._channel.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._channel)
            loop.remove_writer(self._channel)
            self._channel.close()

    def _send(self, content: bytes) -> None:
        was_empty = not self.unsent
        self.unsent += content
        if was_empty and content:
            self._write()

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            del self.unsent[: self._channel.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.hang_up()  # it does not hear any more; its exit tells the rest
            return
        if self.unsent:
            loop.add_writer(self._channel, self._write)
        else:
            loop.remove_writer(self._channel)

    def _read(self) -> bool:
        """Takes what is there; whether there was anything."""
        try:
            content = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            content = b""
        self.unread += content
        try:
            good = bool(content) and self._take_frames()
        except msgspec.MsgspecError:
            good = False  # a child that has lost its mind
        if not good:
            self.hang_up()
        return good

    def _take_frames(self) -> bool:
        """Hands on every whole frame; False when one is too long to be one."""
        while len(self.unread) >= frames.LENGTH_BYTES:
            size = int.from_bytes(self.unread[: frames.LENGTH_BYTES], "big")
            if size > frames.CHANNEL_BYTES_MAX:
                return False
            end = frames.LENGTH_BYTES + size
            if len(self.unread) < end:
                break
            frame = frames.decode_channel(bytes(self.unread[frames.LENGTH_BYTES : end]))
            del self.unread[:end]
            self._received(frame)
        return True

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except ProcessLookupError:  # no child of ours any more
                loop.call_soon(self._reap)
            except OSError:  # no descriptor left, or a kernel or sandbox without
                loop.call_later(_REAP_S, self._reap)
            else:
                loop.add_reader(self._pidfd, self._reap)
        else:
            loop.call_later(_REAP_S, self._reap)

    def _reap(self) -> None:
        status = self._running.poll()
        if status is None:
            if self._pidfd < 0:
                self._watch()
            return
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        while self.fileno() >= 0 and self._read():
            pass  # its last words
        self.hang_up()
        self._exited(status)


class Births:
    """How children are started: as this (uid, gid), with a setup in the file that ``memory_file`` makes."""

    def __init__(self, owner: tuple[int, int] | None, memory_file: Callable[[str, bytes], int]) -> None:
        self.owner = owner
        self._memory_file = memory_file

    def __repr__(self) -> str:
        return f"<Births as {self.owner or 'ourselves'}>"

    def spawn(
        self,
        module: str,
        setup: frames.ChildSetup,
        *,
        inherited: Iterable[int],
        received: Callable[[frames.ChannelFrame], None],
        exited: Callable[[int], None],
    ) -> Process:
        """Starts a module by the door of child.py with these descriptors; fills in ``setup.channel_fd``.

        OSError says it cannot.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failed:
            failed.enter_context(ours)
            setup = msgspec.structs.replace(setup, channel_fd=theirs.fileno())
            setup_fd = self._memory_file("setup", frames.encode(setup))
            try:
                popen = self._popen([_DOOR, module, str(setup_fd)], (theirs.fileno(), setup_fd, *inherited))
            finally:
                os.close(setup_fd)
            failed.pop_all()
        return Process(popen, ours, received, exited)

    def _popen(self, arguments: list[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
        uid, gid = self.owner or (None, None)
        held_back = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_CHILDREN)
        try:
            return subprocess.Popen(  # noqa: S603  # our own interpreter and modules
                [sys.executable, "-P", "-m", *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                env={name: value for name, value in os.environ.items() if not name.startswith(OUR_ENVIRONMENT)},
                user=uid,
                group=gid,
                extra_groups=[] if self.owner else None,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held_back)


class Outcome(NamedTuple):
    """How a command ended: exit status, and the last line that it said; of a traceback also the place."""

    status: int
    words: str


def start(
    command: Sequence[str], environment: Mapping[str, str], *, inherited: Sequence[int], words_fd: int
) -> subprocess.Popen[bytes]:
    """Starts a command that says what it has to say in the file ``words_fd``. OSError says it cannot."""
    return subprocess.Popen(  # noqa: S603  # our own interpreter
        command, stdin=subprocess.DEVNULL, stdout=words_fd, stderr=words_fd, pass_fds=inherited, env=environment
    )


async def outcome(popen: subprocess.Popen[bytes], words_fd: int, deadline_s: float) -> Outcome:
    """Waits for the end of what was started; it is killed at the deadline (TimeoutError), and when we are cancelled."""
    try:
        async with asyncio.timeout(deadline_s):
            while popen.poll() is None:  # noqa: ASYNC110  # rare, and not long
                await asyncio.sleep(_REAP_S)
    finally:
        if popen.poll() is None:
            popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a disk that hangs holds it: it is reaped later
                popen.wait(_KILL_S)
    size = os.fstat(words_fd).st_size
    said = os.pread(words_fd, _WORDS_BYTES, max(0, size - _WORDS_BYTES)).decode(errors="replace")
    return Outcome(popen.returncode, last_words(said))


def last_words(said: str) -> str:
    """The last line; with the file and line of the innermost place when it ends a traceback."""
    lines = [line for line in said.split("\n") if line.strip()]
    places = [found for line in lines if (found := _PLACE.match(line))]
    last = lines[-1].strip() if lines else ""
    if not places or "Error" not in last.partition(":")[0]:
        return last
    return f"{last} ({places[-1].group(1)}, line {places[-1].group(2)})"
