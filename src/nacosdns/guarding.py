"""The guard: keeps our address first in resolv.conf while we answer, and gives the file back when it is asked to.

Must not know: how a file is replaced (edge/resolvfile.py), what should stand in it (core/resolvtext.py). Rules: an
address that does not answer is never put in; nothing is replaced before it was kept; whoever fights for the file gets
it for a while, and the log says so. A process of its own: it alone needs the right to write there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nacosdns import config as configuration
from nacosdns.core import resolvtext
from nacosdns.core.resolvtext import Fights, Saved, Wish
from nacosdns.edge import canary, host, hostfacts, logs, page, resolvconf, resolvfile, sockets, standing
from nacosdns.edge.clock import next_multiple
from nacosdns.errors import HostError, NacosdnsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nacosdns.config import Config
    from nacosdns.core.resolvtext import Found
    from nacosdns.ports import Log

LOOK_S = 2.0
DNS_PORT = 53
NAME = "nacosdns-guard"
STOP_S = 1.0
RESTART_S = 3.0


class Place(NamedTuple):
    """The file, the copy of what stood there, and what we want there."""

    path: Path
    saved: Path
    wish: Wish


def place(config: Config) -> Place:
    """What a configuration says of the file. HostError when no address of ours can stand in a resolv.conf."""
    own = own_address(config)
    if not own:
        raise HostError(
            "server.listen has no address on port 53, and a resolv.conf cannot name a port; listen on 127.0.0.1:53"
        )
    saved = Path(config.cache.dir) / resolvconf.SAVED_NAME
    servers = tuple(dict.fromkeys((own, *config.host.nodes)))
    return Place(Path(config.host.resolv_conf), saved, Wish(servers, str(saved)))


def own_address(config: Config) -> str:
    """Where the programs of this host reach us on port 53: loopback rather than another; "" for nowhere."""
    found, _ = sockets.endpoints(config.server.listen, host.addresses())
    local = [endpoint.local.host for endpoint in found if endpoint.port == DNS_PORT]
    return min(local, key=lambda address: not address.startswith(("127.", "::1")), default="")


class Guard:
    """Holds the lock of the state directory while it is open. ``answers`` says whether we answer at an address."""

    def __init__(
        self, config: Config, log: Log, answers: Callable[[str, int], Awaitable[bool]] = canary.answered
    ) -> None:
        self._config = config
        self._log = log
        self._answers = answers
        self._fights = Fights()
        self._said = ""
        self._lock = -1
        self.writes = 0

    def __repr__(self) -> str:
        return f"<Guard {self._config.host.resolv_conf} {self.writes} writes {self._fights}>"

    def close(self) -> None:
        """Lets another guard have the lock."""
        if self._lock >= 0:
            resolvfile.unlock(self._lock)
            self._lock = -1

    def configure(self, config: Config) -> None:
        """What is wanted from the next look on."""
        if config.cache.dir != self._config.cache.dir:
            self.close()
        self._config = config

    async def run(self, stop: asyncio.Event) -> None:
        """Looks every ``LOOK_S`` until ``stop``; nothing that the host refuses ends it."""
        await self.look()
        self._log.info("guard.watches", file=self._config.host.resolv_conf, every_s=LOOK_S)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()
                return
            await self.look()

    async def look(self) -> str:
        """One look; what was done: "" nothing, else a word of edge/resolvfile.py or why it could not be."""
        try:
            return await self._look()
        except HostError as error:
            self._say("guard.refused", str(error))
            return str(error)

    async def _look(self) -> str:
        if self._lock < 0:
            self._lock = resolvfile.lock(Path(self._config.cache.dir))
        where = place(self._config)
        found = resolvfile.look(where.path)
        saved = resolvfile.read_saved(where.saved)
        wanted = resolvtext.plan(found, saved, where.wish, _behind(where.path, saved))
        if wanted.write is None:
            if wanted.save is not None:
                self._keep(where, wanted.save)
            self._said = ""
            return ""
        if not self._fights.may_write(time.monotonic()):
            return "paused"
        if not await self._answers(where.wish.servers[0], DNS_PORT):
            self._say("guard.waits", f"{where.wish.servers[0]} does not answer: {where.path} is left as it is")
            return "no answer"
        if wanted.save is not None:
            self._keep(where, wanted.save)
        return self._write(where, wanted.write, found)

    def _keep(self, where: Place, saved: Saved) -> None:
        resolvfile.write_saved(where.saved, saved)
        self._log.info("guard.saved", file=str(where.saved), kind=saved.kind, target=saved.target)

    def _write(self, where: Place, text: bytes, found: Found) -> str:
        did = resolvfile.put(where.path, text, found)
        if did == resolvfile.CHANGED:
            return did
        self.writes += 1
        self._said = ""
        self._log.info("guard.wrote", file=str(where.path), how=did, servers=",".join(where.wish.servers))
        pause_s = self._fights.wrote(time.monotonic())
        if pause_s:
            running = ", ".join(f"{name} (pid {pid})" for name, pid in hostfacts.writers(hostfacts.Tree()))
            self._log.error(
                "guard.fought",
                file=str(where.path),
                reason="another program writes it again and again; let it name us, or leave the file alone",
                running=running or "none that is known to write it; `nacosdns doctor` says how it is found",
                pause_s=pause_s,
            )
            saved = resolvfile.read_saved(where.saved) or Saved()
            resolvfile.write_saved(where.saved, msgspec.structs.replace(saved, fought_at=time.time()))
        return did

    def restore(self) -> str:
        """Gives the file back and forgets the copy; what was done, in words. HostError when it cannot be."""
        if self._lock < 0:
            self._lock = resolvfile.lock(Path(self._config.cache.dir))
        path, copy = Path(self._config.host.resolv_conf), Path(self._config.cache.dir) / resolvconf.SAVED_NAME
        saved = resolvfile.read_saved(copy)
        if saved is None:
            return f"nothing to restore: there is no {copy}"
        restored = resolvfile.give_back(path, saved)
        if not restored and resolvtext.is_ours(resolvfile.look(path).text):
            raise HostError(f"{path} changes all the time; try again")
        resolvfile.drop_saved(copy)
        done = f"{path} is what it was before" if restored else f"{path} is not ours any more: left as it is"
        self._log.info("guard.restored", file=str(path), restored=restored)
        return done

    def _say(self, event: str, reason: str) -> None:
        """Said once, tried at every look."""
        if reason != self._said:
            self._said = reason
            (self._log.error if event == "guard.refused" else self._log.warning)(event, reason=reason)


def _behind(path: Path, saved: Saved | None) -> bytes:
    """What the link that we replaced leads to now: its owner goes on writing there."""
    if saved is None or saved.kind != "link":
        return b""
    try:
        return resolvfile.look(path.parent / saved.target).text
    except HostError:
        return b""


async def guard(
    read: Callable[[], Config], *, restore: bool, ended: Callable[[], Awaitable[object]] | None = None
) -> int:
    """Guards until SIGTERM, SIGINT or the end of ``ended``; 0, or 1 when the file could not be given back.

    SIGHUP reads the configuration again. The file is given back only when we were told to stop, and ``restore`` or the
    configuration asks for it.
    """
    life = _Life(read)
    for number, heard in ((signal.SIGTERM, life.stop), (signal.SIGINT, life.stop), (signal.SIGHUP, life.reload)):
        asyncio.get_running_loop().add_signal_handler(number, heard)
    try:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_until(ended, life.over)) if ended else None
            await life.guard.run(life.over)
            if waiting:
                waiting.cancel()
        if life.told and (restore or life.config.host.restore_on_stop):
            life.guard.restore()
    except HostError as error:
        logs.log().error("guard.not_restored", reason=str(error))
        return 1
    finally:
        life.guard.close()
    return 0


class _Life:
    """One run of the guard and what it hears. ``told``: by a signal, not by the end of whoever started it."""

    def __init__(self, read: Callable[[], Config]) -> None:
        self.config = read()
        self.guard = Guard(self.config, logs.log())
        self.over = asyncio.Event()
        self.told = False
        self._read = read

    def stop(self) -> None:
        self.told = True
        self.over.set()

    def reload(self) -> None:
        try:
            self.config = self._read()
        except NacosdnsError as error:
            logs.log().error("reload.refused", reason=str(error))
            return
        self.guard.configure(self.config)


async def _until(ended: Callable[[], Awaitable[object]], stop: asyncio.Event) -> None:
    await ended()
    stop.set()


# As a child of the supervisor: ``[host] guard = true``


async def keep(read: Callable[[], Config], log: Log) -> None:
    """Has a guard run as long as the configuration wants one, until cancelled. For the supervisor's task group.

    A guard whose supervisor went over to new code ends by itself, for its pipe does; the new code buries it.
    """
    while True:
        _bury()
        config = read()
        if config.host.guard:
            await _one_life(config, read, log)
            await asyncio.sleep(RESTART_S)
        await next_multiple(LOOK_S)


def _bury() -> None:
    """Reaps guards that have ended and that nobody waits for, by the name that they gave themselves."""
    for pid in standing.dead_children(NAME):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


async def _one_life(config: Config, read: Callable[[], Config], log: Log) -> None:
    """One process, from start to end; it is ended when the configuration becomes another."""
    with contextlib.ExitStack() as descriptors:
        try:
            process = await _started(config, descriptors)
        except OSError as error:
            log.error("guard.not_started", reason=str(error))
            return
        log.info("guard.started", pid=process.pid)
        try:
            while process.returncode is None and concern(read()) == concern(config):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await process.wait()
            if process.returncode is not None:
                log.warning("guard.exited", status=process.returncode)
        finally:
            await _end(process)


def concern(config: Config) -> tuple[object, ...]:
    """What of a configuration a guard goes by: a new one of anything else would only give the file back for a moment."""
    return config.host, config.server.listen, config.cache.dir, config.log


async def _started(config: Config, descriptors: contextlib.ExitStack) -> asyncio.subprocess.Process:
    """The process; ``descriptors`` holds our end of its pipe. OSError says that it cannot be started."""
    setup_fd = page.memory_file("guard", configuration.encode(config))
    try:
        ours, theirs = os.pipe()
        descriptors.callback(os.close, theirs)
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "nacosdns.guarding", str(setup_fd), str(ours)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(setup_fd, ours),
            )
        finally:
            os.close(ours)
    finally:
        os.close(setup_fd)


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, so that it may give the file back; SIGKILL when it does not listen."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def main() -> None:
    """``python -m nacosdns.guarding SETUP_FD PIPE_FD``: guards until the pipe ends, which is the supervisor's end."""
    setup_fd, pipe_fd = map(int, sys.argv[1:3])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # one born in the middle of an upgrade inherits what that holds back
    config = configuration.decode(os.pread(setup_fd, os.fstat(setup_fd).st_size, 0))
    os.close(setup_fd)
    logs.configure(config.log.level, role="guard")
    standing.die_with_the_parent()
    standing.call_me(NAME)

    async def ended() -> None:
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe_fd, gone.set)
        await gone.wait()

    sys.exit(asyncio.run(guard(lambda: config, restore=False, ended=ended)))


if __name__ == "__main__":
    main()
