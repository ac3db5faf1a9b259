"""The control socket: typed requests from `nacosdns ask`, `status` and the like, and their answers.

Must not know: what a verb means. Rules: one request and one answer a connection, in frames of core/frames.py; who may
ask is decided by the mode of the socket file; a slow or silent client costs one connection and nothing else; what is
asked by somebody who is gone is not carried out.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from nacosdns.core import frames
from nacosdns.core.handover import HeldFile
from nacosdns.edge import standing
from nacosdns.errors import ControlError, ControlForeign, ControlSilent, StartError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

REQUEST_BYTES_MAX = 64 * 1024
REQUEST_DEADLINE_S = 2.0
CONNECTIONS_MAX = 16
CALL_DEADLINE_S = 5.0
_UNIX_SOCKETS = Path("/proc/net/unix")
OF_ANY_VERSION = {"upgrade", "upgrade.state"}
"""What the command of one release asks the bridge of another: these never change."""
_FOREIGN = "the running bridge understands version"
_OTHER_VERSION = (
    f"{_FOREIGN} {frames.CONTROL_VERSION} of the control protocol, this command speaks another;"
    " use the command of the release that runs, or restart the bridge"
)


def listen(path: Path, mode: int, uid: int = -1, gid: int = -1) -> socket.socket:
    """A listening Unix socket at ``path`` with this mode and owner (-1 leaves it).

    What a dead process left there is replaced; StartError when a living one listens, or the directory refuses.
    """
    try:
        alive = is_alive(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise _not_made(path, error) from error
    if alive:
        sock.close()
        raise StartError(
            f"another nacosdns is running on {path.parent}; stop it, or set cache.dir to another directory"
        )
    try:
        path.unlink(missing_ok=True)
        before = os.umask(0o777 & ~mode)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        os.chown(path, uid, gid)
        sock.listen(CONNECTIONS_MAX)
    except OSError as error:
        sock.close()
        raise _not_made(path, error) from error
    sock.setblocking(False)
    return sock


def _not_made(path: Path, error: OSError) -> StartError:
    return StartError(f"{path} cannot be made ({error.strerror or error}); see cache.dir and server.control_group")


class Listener:
    """A listening Unix socket that knows whether its file is still there, and can be made anew. A context manager."""

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        self._mode = mode
        self._socket: socket.socket | None = None
        self._file: tuple[int, int] | None = None
        self._remade = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Listener {self.path}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket:
            self._socket.close()

    @property
    def is_there(self) -> bool:
        """Whether the file is the one that we made, so that a client can find us."""
        return self._file is not None and _identity(self.path) == self._file

    def fileno(self) -> int:
        """The descriptor; another one after each ``open`` that made a socket, -1 before the first."""
        return self._socket.fileno() if self._socket else -1

    def open(self, uid: int = -1, gid: int = -1) -> None:
        """Listens as ``listen`` does, unless the file is there. The old socket stays when that fails (StartError)."""
        if self.is_there:
            return
        before, self._socket = self._socket, listen(self.path, self._mode, uid, gid)
        self._file = _identity(self.path)
        self._remade.set()
        if before:
            before.close()

    def hold(self) -> HeldFile:
        """What another program needs to go on with this socket; it has to be inherited by it."""
        device, number = self._file or (0, 0)
        return HeldFile(fd=self.fileno(), device=device, number=number)

    def adopt(self, held: HeldFile) -> None:
        """Goes on with an inherited socket, as if we had opened it."""
        self._socket = socket.socket(fileno=held.fd)
        self._file = (held.device, held.number)

    def give(self, uid: int, gid: int) -> None:
        """Another owner for the file, if it is there. StartError when that is refused."""
        if self.is_there:
            try:
                os.chown(self.path, uid, gid, follow_symlinks=False)
            except OSError as error:
                raise StartError(f"{self.path} cannot be given to another user ({error.strerror})") from error

    async def serve(self, answer: Callable[[frames.Ask], Awaitable[frames.Told]]) -> None:
        """Answers requests as ``serve`` does, on whatever socket is ours at the time, until cancelled."""
        while self._socket:
            self._remade.clear()
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(serve(self._socket.dup(), answer))  # the server closes its own
                await self._remade.wait()
                serving.cancel()


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a file; None when there is none to see."""
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_alive(path: Path) -> bool:
    """Whether somebody listens on the Unix socket there, and lets us speak."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CALL_DEADLINE_S)
        try:
            return sock.connect_ex(str(path)) == 0
        except OSError:
            return False  # no path for a socket, or nobody takes us


def listener(path: Path) -> int:
    """The pid of who listens on the Unix socket there; 0 when nobody does, or it is not told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CALL_DEADLINE_S)
        try:
            sock.connect(str(path))
            return _listener(sock)
        except OSError:
            return 0


def elsewhere(path: Path, sibling: str) -> list[Path]:
    """Sockets of the name of ``path`` that somebody listens on in other directories, ``sibling`` beside them."""
    try:
        lines = _UNIX_SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return []
    known = {line.split(maxsplit=7)[-1] for line in lines}
    others = {Path(name) for name in known if name.startswith("/")} - {path}
    return sorted(one for one in others if one.name == path.name and str(one.with_name(sibling)) in known)


async def serve(sock: socket.socket, answer: Callable[[frames.Ask], Awaitable[frames.Told]]) -> None:
    """Answers requests on a listening socket until cancelled."""
    places = asyncio.Semaphore(CONNECTIONS_MAX)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with places:
            try:
                async with asyncio.timeout(REQUEST_DEADLINE_S):
                    ask = await _read_request(reader)
                if _is_gone(writer):
                    return  # its command said that it failed: it must not be carried out all the same
                is_ours = ask.version == frames.CONTROL_VERSION or ask.verb in OF_ANY_VERSION
                writer.write(frames.framed(await answer(ask) if is_ours else frames.Told(0, error=_OTHER_VERSION)))
                async with asyncio.timeout(REQUEST_DEADLINE_S):
                    await writer.drain()
            except (TimeoutError, OSError, asyncio.IncompleteReadError, msgspec.MsgspecError, ControlError):
                writer.transport.abort()  # a client that does not speak our language, or went away
            finally:
                writer.close()

    server = await asyncio.start_unix_server(talk, sock=sock)
    async with server:
        await server.serve_forever()


def _is_gone(writer: asyncio.StreamWriter) -> bool:
    """Whether the client hung up, as it does when we did not come to it in its time."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


async def _read_request(reader: asyncio.StreamReader) -> frames.Ask:
    size = int.from_bytes(await reader.readexactly(frames.LENGTH_BYTES), "big")
    if size > REQUEST_BYTES_MAX:
        raise ControlError("request too long")
    frame = frames.decode_channel(await reader.readexactly(size))
    if not isinstance(frame, frames.Ask):
        raise ControlError("not a request")
    return frame


def pages(path: Path, verb: str, arguments: Mapping[str, object]) -> Iterator[Any]:
    """Asks page by page. What ``call`` raises."""
    after = None
    while True:
        page: Any = call(path, verb, {**arguments, "after": after})
        yield page
        if (after := page["next"]) is None:
            return


def call(path: Path, verb: str, arguments: Mapping[str, object], deadline_s: float = CALL_DEADLINE_S) -> object:
    """Asks the running bridge. Blocks for about ``deadline_s`` at most; ControlError says what went wrong."""
    pid = 0
    ask = frames.Ask(0, verb, {name: msgspec.Raw(frames.encode(value)) for name, value in arguments.items()})
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(deadline_s)
            sock.connect(str(path))
            pid = _listener(sock)
            sock.sendall(frames.framed(ask))
            with sock.makefile("rb") as file:
                size = int.from_bytes(file.read(frames.LENGTH_BYTES), "big")
                told = frames.decode_channel(file.read(size))
    except FileNotFoundError as error:
        raise ControlError(f"nacosdns is not running (no {path}); see `nacosdns run`, or name its -c FILE") from error
    except PermissionError as error:
        raise ControlError(f"no right to use {path}; be root or in the group of server.control_group") from error
    except ConnectionRefusedError as error:
        raise ControlError(f"nacosdns is not running (nobody listens on {path})") from error
    except TimeoutError as error:
        raise ControlSilent(f"no answer on {path} within {deadline_s:g} s{_as_it_is(pid)}") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise ControlError(
            f"no answer on {path} ({error}); if the bridge is of another release, use the command of that release"
        ) from error
    if not isinstance(told, frames.Told):
        raise ControlError(f"no answer on {path}")
    if told.error:
        raise (ControlForeign if told.error.startswith(_FOREIGN) else ControlError)(told.error)
    return msgspec.msgpack.decode(told.body)


def _listener(sock: socket.socket) -> int:
    """The pid of who listens at the other end; 0 where that is not told."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _as_it_is(pid: int) -> str:
    """What is known of a process that does not answer, to be added to a sentence."""
    if not pid:
        return ""
    if standing.is_stopped(pid):
        return f": pid {pid} is stopped (its fronts may answer); wake it with kill -CONT {pid}"
    return f": pid {pid} runs, and does not come to it"
