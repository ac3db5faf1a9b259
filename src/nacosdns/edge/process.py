"""Children as processes: how one is born, spoken to, killed and mourned.

Must not know: what a child does, when to start it again. Rules: a child's secrets travel in a descriptor, never in
argv or the environment; it inherits exactly the descriptors that it is given; its end is noticed by pidfd.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ENVIRONMENT_PREFIX = "NACOSDNS_"
_REAP_S = 0.05


class Process:
    """One running child. ``exited`` is called once, on the loop, with its exit status (negative: the signal)."""

    def __init__(self, popen: subprocess.Popen[bytes], channel: socket.socket, exited: Callable[[int], None]) -> None:
        self.pid = popen.pid
        self.channel = channel
        self._popen = popen
        self._exited = exited
        self._writer: asyncio.StreamWriter | None = None
        self._pidfd = -1
        self._watch()

    def __repr__(self) -> str:
        return f"<Process {self.pid}>"

    async def hear(self, received: Callable[[frames.ChannelFrame], None]) -> None:
        """Hands every frame of the child to ``received``; returns when its end of the channel is closed."""
        reader, writer = await asyncio.open_unix_connection(sock=self.channel)
        self._writer = writer
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(frames.LENGTH_BYTES), "big")
                if size > frames.CHANNEL_BYTES_MAX:
                    break
                received(frames.decode_channel(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            pass  # its end, or a child that has lost its mind: the exit of the process tells the rest
        finally:
            self._writer = None
            writer.transport.abort()  # nobody reads what is still to be sent
            with contextlib.suppress(OSError):
                await writer.wait_closed()  # takes the error of a write to one that hung up; else it is logged later

    def tell(self, frame: frames.ChannelFrame) -> bool:
        """Sends a frame; whether there is a channel to send it on."""
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(frames.framed(frame))
        return True

    def kill(self) -> None:
        """Ends it now (SIGKILL)."""
        if self._popen.returncode is None:
            self._popen.send_signal(signal.SIGKILL)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self.pid)
            loop.add_reader(self._pidfd, self._reap)
        else:
            loop.call_later(_REAP_S, self._reap)

    def _reap(self) -> None:
        status = self._popen.poll()
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
        elif status is None:
            self._watch()
            return
        self._exited(status if status is not None else self._popen.wait())


class Births:
    """How children are started: as this (uid, gid), with a setup in the file that ``memory_file`` makes."""

    def __init__(self, owner: tuple[int, int] | None, memory_file: Callable[[str, bytes], int]) -> None:
        self.owner = owner
        self._memory_file = memory_file

    def __repr__(self) -> str:
        return f"<Births as {self.owner or 'ourselves'}>"

    def spawn(
        self, module: str, setup: frames.ChildSetup, inherited: Iterable[int], exited: Callable[[int], None]
    ) -> Process:
        """Starts ``python -m MODULE FD`` with these descriptors; fills in ``setup.channel_fd``. OSError says it cannot."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failed:
            failed.enter_context(ours)
            ours.setblocking(False)
            setup = msgspec.structs.replace(setup, channel_fd=theirs.fileno())
            setup_fd = self._memory_file("setup", frames.encode(setup))
            try:
                popen = self._popen([module, str(setup_fd)], (theirs.fileno(), setup_fd, *inherited))
            finally:
                os.close(setup_fd)
            failed.pop_all()
        return Process(popen, ours, exited)

    def _popen(self, arguments: list[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
        uid, gid = self.owner or (None, None)
        return subprocess.Popen(  # noqa: S603  # our own interpreter and modules
            [sys.executable, "-P", "-m", *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)},
            user=uid,
            group=gid,
            extra_groups=[] if self.owner else None,
        )
