"""Conductor 1: opens the sockets, starts and watches the other processes, hears signals and control requests.

Must not know: names, services, what is in a packet. Rules: holds no data; decides nothing that core/watch.py can
decide; a wrong configuration or a taken port is fatal at the start and refused later; nothing else from outside ends
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nacosdns import config as configuration
from nacosdns.config_load import read_password
from nacosdns.control import Control
from nacosdns.core import frames, metrics, watch
from nacosdns.core.watch import Phase, Watch
from nacosdns.edge import admin, canary, host, logs, page, rights, sockets
from nacosdns.edge.clock import HostClock, next_multiple
from nacosdns.edge.cover import Cover
from nacosdns.edge.page import Page, Role, State
from nacosdns.edge.process import Births
from nacosdns.errors import ConfigError, NacosdnsError, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nacosdns.config import Config
    from nacosdns.edge.process import Process
    from nacosdns.ports import Log

MODULES: Mapping[str, str] = {
    "keeper": "nacosdns.keeper_process",
    "front": "nacosdns.front_process",
    "web": "nacosdns.web",
}
LINK_SOCKET = "link.sock"
CONTROL_SOCKET = "control.sock"
CANARY_S = 1.0
LOOK_AROUND_S = 2.0
FRONT_DRAIN_S = 1.2
KEEPER_DRAIN_S = 1.0
DRAIN_GRACE_S = 0.15
KILL_GRACE_S = 0.2
_QUERIES_PER_MS = 10  # at 10,000 queries a second, for the log line about receive buffers
_NS = 1_000_000_000


class _Stopped(Exception):  # the good end of the task group
    """All is done: ends every task of the conductor."""


class Supervisor:
    """One bridge. ``load`` reads configuration and password again at SIGHUP; ``modules`` are the children by role."""

    def __init__(
        self,
        config: Config,
        password: str,
        load: Callable[[], tuple[Config, str]],
        modules: Mapping[str, str] = MODULES,
    ) -> None:
        self.config = config
        self._password = password
        self._load = load
        self._modules = modules
        self.clock = HostClock()
        self.counters = metrics.Counters()
        self.listeners = sockets.Listeners()
        self.watch = Watch(config.server.fronts, self.clock.now(), web=bool(config.web.listen))
        self.pages: dict[int, Page] = {}
        self.processes: dict[int, Process] = {}
        self._told: dict[int, Config] = {}
        self._born: set[int] = set()
        self._seen: dict[host.HostAddress, None] = {}
        self._password_stamp = _stamp(config)
        self._cover = Cover(lambda count: self._count(metrics.COVERED.index(), count))
        self._control = Control(self.watch, self._tell, self._overview)
        self._link_socket = admin.Listener(Path(config.cache.dir) / LINK_SOCKET, 0o600)
        self._control_socket = admin.Listener(Path(config.cache.dir) / CONTROL_SOCKET, 0o660)
        self._refused = ""
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()
        self._stopped = asyncio.Event()
        self._exit_code = 0
        self._log: Log = logs.log()

    def __repr__(self) -> str:
        return f"<Supervisor {self.listeners} {self.watch}>"

    # Life

    async def run(self) -> int:
        """Runs the bridge until it is told to stop; the exit code. StartError when this host does not let it start."""
        with contextlib.ExitStack() as resources:
            resources.callback(self._kill_all)
            self._open(resources)
            try:
                async with asyncio.TaskGroup() as self._group:
                    for part in (self._conduct(), self._judge(), self._ask_canary(), self._look_around(), self._end()):
                        self._group.create_task(part)
                    self._group.create_task(self._control_socket.serve(self._control.answer))
                    self._hear_signals()
            except* _Stopped:
                pass
            except* StartError as group:
                raise group.exceptions[0] from None
        return self._exit_code

    def _open(self, resources: contextlib.ExitStack) -> None:
        """Takes everything that the bridge needs of this host; ``resources`` gives it back."""
        server = self.config.server
        self._user = rights.find_user(server.user)
        self._births = Births(rights.owner(self._user), page.memory_file)
        resources.callback(self.listeners.close)
        self._want_sockets(self.config)
        if self.config.web.listen:
            sockets.check_free(sockets.Endpoint(*configuration.host_port(self.config.web.listen)), "web.listen")
        resources.enter_context(self._link_socket)
        resources.enter_context(self._control_socket)
        self._open_sockets()
        self._make_pages()
        self.pages[watch.SUPERVISOR_SLOT].state = State.READY
        buffer_bytes = self.listeners.receive_buffer_bytes()
        self._log.info(
            "started",
            listen=",".join(map(str, self.listeners.wanted)),
            fronts=server.fronts,
            config=configuration.digest(self.config),
            receive_buffer_bytes=buffer_bytes,
            receive_buffer_ms=buffer_bytes // sockets.QUERY_BUFFER_BYTES // _QUERIES_PER_MS,
        )

    def _open_sockets(self) -> None:
        """Makes the state directory and those of our socket files that are not there."""
        gid = rights.group_id(self.config.server.control_group)
        rights.prepare_directory(Path(self.config.cache.dir), self._user, gid)
        self._link_socket.open(*(rights.owner(self._user) or (rights.UNCHANGED, rights.UNCHANGED)))
        self._control_socket.open(rights.UNCHANGED, gid)

    def _want_sockets(self, config: Config) -> bool:
        """Opens what this configuration needs; whether the set of sockets changed."""
        self._seen |= dict.fromkeys(host.addresses())
        changed = self.listeners.want(config.server.listen, config.server.fronts, self._seen)
        for entry in self.listeners.missing if changed else ():
            self._log.warning("listen.interface_missing", entry=entry)
        for endpoint in self.listeners.late if changed else ():
            self._log.warning("listen.address_missing", address=str(endpoint))
        return changed

    def _make_pages(self) -> None:
        """A page for every slot; web has to be born anew to see new ones."""
        missing = {watch.SUPERVISOR_SLOT, *self.watch.wards} - self.pages.keys()
        for slot in missing:
            self.pages[slot] = Page.create()
        if watch.SUPERVISOR_SLOT in missing:
            self.pages[watch.SUPERVISOR_SLOT].claim(Role.SUPERVISOR, os.getpid(), self.clock.now_ns())
        elif missing:
            self.watch.renew("web")

    async def _end(self) -> None:
        await self._stopped.wait()
        raise _Stopped

    def _kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    # Children

    async def _conduct(self) -> None:
        while True:
            self._wake.clear()
            for action in self.watch.plan(self.clock.now()):
                self._do(action)
            due_at = self.watch.due_at()
            wait_s = None if due_at is None else max(0.0, due_at - self.clock.now())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)

    def _do(self, action: watch.Action) -> None:
        match action:
            case watch.Spawn(slot):
                self._spawn(slot)
            case watch.Kill(slot, reason):
                self._log.warning("child.killed", **self._who(slot), reason=reason)
                self.processes[slot].kill()
            case watch.Activate(slot, own):
                self._log.info("front.reads", slot=slot, sockets=list(own))
                self._tell(slot, frames.Activate(own))
            case watch.Drain(slot, deadline_s):
                self._tell(slot, frames.Drain(deadline_s))
            case watch.Cover(own):
                alarming = own and not self.watch.stopping
                (self._log.warning if alarming else self._log.info)("front.covered", sockets=list(own))
                self._cover.set(pair for slot in own for pair in self.listeners.pairs(slot))

    def _spawn(self, slot: int) -> None:
        role = self.watch.wards[slot].role
        setup, inherited = self._setup(slot, role)
        self.pages[slot].claim(Role[role.upper()], 0, self.clock.now_ns())
        self.watch.spawned(slot, self.clock.now())
        if slot in self._born:
            self._count(metrics.RESTARTS.index(role))
        self._born.add(slot)
        try:
            process = self._births.spawn(
                self._modules[role], setup, inherited, lambda status: self._exited(slot, status)
            )
        except OSError as error:
            if isinstance(error, PermissionError) and not self._told:
                raise rights.cannot_run(self._user, error) from error
            self._log.error("child.not_started", role=role, slot=slot, reason=str(error))
            self.watch.exited(slot, self.clock.now())
            return
        self.pages[slot].claim(Role[role.upper()], process.pid, self.clock.now_ns())
        self.processes[slot] = process
        self._told[slot] = self.config
        self._group.create_task(process.hear(lambda frame: self._heard(slot, process, frame)))
        self._log.info("child.started", **self._who(slot))

    def _setup(self, slot: int, role: str) -> tuple[frames.ChildSetup, list[int]]:
        """What the child is born with, and the descriptors that it inherits."""
        own = self.pages[slot].fd
        setup = frames.ChildSetup(
            role=role,
            slot=slot,
            channel_fd=-1,
            page_fd=own,
            link_path=str(Path(self.config.cache.dir) / LINK_SOCKET),
            config=configuration.encode(self.config),
        )
        match role:
            case "keeper":
                link_fd = self._link_socket.fileno()
                setup = msgspec.structs.replace(setup, link_fd=link_fd, password=self._password)
                return setup, [own, link_fd]
            case "front":
                sets = self.listeners.sets()
                return msgspec.structs.replace(setup, sockets=sets), [
                    own,
                    *(fd for one in sets for fd, _ in one.udp + one.tcp),
                ]
            case _:
                fds = tuple(self.pages[n].fd if n in self.pages else -1 for n in range(max(self.pages) + 1))
                return msgspec.structs.replace(setup, pages=fds), [fd for fd in fds if fd >= 0]

    def _who(self, slot: int) -> dict[str, str | int]:
        process = self.processes.get(slot)
        return {"child": self.watch.wards[slot].role, "slot": slot, "pid": process.pid if process else 0}

    def _tell(self, slot: int, frame: frames.ChannelFrame) -> bool:
        return slot in self.processes and self.processes[slot].tell(frame)

    def _heard(self, slot: int, process: Process, frame: frames.ChannelFrame) -> None:
        if self.processes.get(slot) is not process:
            return  # the last words of one that is gone already
        match frame:
            case frames.Ready(services=services):
                self._log.info("child.ready", **self._who(slot), services=services)
                self.watch.ready(slot)
                if self._told[slot] is not self.config:
                    self._configure(slot)
                self._wake.set()
            case frames.Told():
                self._control.told(slot, frame)
            case _:
                self._log.warning("channel.unexpected", frame=type(frame).__name__, slot=slot)

    def _exited(self, slot: int, status: int) -> None:
        ward = self.watch.wards[slot]
        expected = ward.phase is Phase.DRAINING or self.watch.stopping
        (self._log.info if expected else self._log.warning)("child.exited", **self._who(slot), status=status)
        del self.processes[slot]
        self.pages[slot].release()
        self.pages[slot].clear(metrics.gauge_cells())
        self._control.lost(slot)
        self.watch.exited(slot, self.clock.now())
        self._gone.set()
        self._wake.set()

    def _overview(self) -> dict[str, object]:
        """Our own part of `nacosdns status`."""
        now_ns = self.clock.now_ns()
        own = self.pages[watch.SUPERVISOR_SLOT]
        return {
            "pid": os.getpid(),
            "up_s": (now_ns - own.started_ns) / _NS,
            "config": configuration.digest(self.config),
            "listen": [str(endpoint) for endpoint in self.listeners.wanted],
            "missing": [*self.listeners.missing, *map(str, self.listeners.late)],
            "canary_age_s": (now_ns - own.canary_ns) / _NS if own.canary_ns else None,
            "covered": list(self.watch.covered),
            "children": [self._child(ward, now_ns) for _, ward in sorted(self.watch.wards.items())],
        }

    def _child(self, ward: watch.Ward, now_ns: int) -> dict[str, object]:
        return {
            "role": ward.role,
            "slot": ward.slot,
            "pid": self.processes[ward.slot].pid if ward.slot in self.processes else 0,
            "phase": ward.phase.value,
            "sockets": list(ward.reads),
            "beat_age_s": max(0, now_ns - self.pages[ward.slot].beat_ns) / _NS,
            "failures": ward.failures,
        }

    def _count(self, index: int, times: int = 1) -> None:
        self.counters[index] += times

    # Watching

    async def _judge(self) -> None:
        own = self.pages[watch.SUPERVISOR_SLOT]
        while True:
            await next_multiple(watch.JUDGE_S)
            now_ns = self.clock.now_ns()
            ages_s = {slot: max(0, now_ns - self.pages[slot].beat_ns) / _NS for slot in self.processes}
            for action in self.watch.judge(now_ns / _NS, ages_s):
                self._do(action)
            for role in ("keeper", "front", "web"):
                alive = [w for w in self.watch.wards.values() if w.role == role and w.phase is Phase.READY]
                self.counters.set(metrics.ALIVE.index(role), len(alive))
            own.beat(now_ns)
            self.counters.flush_into(own.counters)

    async def _ask_canary(self) -> None:
        """Once a second, when a front should be there; the time of the last answer stands in our page."""
        while True:
            await next_multiple(CANARY_S)
            endpoint = next((item for item in self.listeners.wanted if item not in self.listeners.late), None)
            if endpoint is None or not any(ward.reads for ward in self.watch.wards.values()):
                continue
            good = await canary.answered(endpoint.local.host, endpoint.port)
            self._count(metrics.CANARY.index("answered" if good else "lost"))
            if good:
                self.pages[watch.SUPERVISOR_SLOT].canary_answered(self.clock.now_ns())

    async def _look_around(self) -> None:
        """What changes on a host without telling: addresses, interfaces, the password file, our directory."""
        while True:
            await next_multiple(LOOK_AROUND_S)
            present = {str(item.address) for item in host.addresses()}
            for endpoint in [item for item in self.listeners.late if item.host in present]:
                self.listeners.late.discard(endpoint)
                self._log.info("listen.address_appeared", address=str(endpoint))
            self._look_for_interfaces()
            self._look_at_password()
            self._look_at_directory()
            if self.watch.is_settled:
                self.listeners.close_unwanted()

    def _look_for_interfaces(self) -> None:
        try:
            if self._want_sockets(self.config):
                self.watch.renew("front")
                self._wake.set()
        except StartError as error:
            self._log.warning("listen.refused", reason=str(error))

    def _look_at_password(self) -> None:
        stamp = _stamp(self.config)
        if stamp == self._password_stamp:
            return
        self._password_stamp = stamp
        try:
            self._password = read_password(self.config)
        except ConfigError as error:
            self._log.warning("password.unreadable", reason=str(error))  # the one we have stays
            return
        self._log.info("password.changed")
        self._configure(watch.KEEPER_SLOT)

    def _look_at_directory(self) -> None:
        """Socket files that somebody removed are made anew, and so is the keeper, which holds the old link."""
        if self._link_socket.is_there and self._control_socket.is_there:
            return
        link_fd, refused = self._link_socket.fileno(), self._refused
        try:
            self._open_sockets()
            self._refused = ""
            self._log.warning("sockets.remade", directory=self.config.cache.dir)
        except StartError as error:
            self._refused = str(error)
            if self._refused != refused:  # said once, tried every time
                self._log.warning("sockets.not_remade", reason=self._refused)
        if self._link_socket.fileno() != link_fd:
            self.watch.renew("keeper")
            self._wake.set()

    # Signals

    def _told_to_stop(self) -> None:
        if self.watch.stopping:
            self._log.warning("stopping.at_once")
            self._exit_code = 1
            self._stopped.set()
            return
        self.watch.stopping = True
        self._group.create_task(self._stop())

    async def _stop(self) -> None:
        """Fronts and web finish first, then the keeper saves; who does not listen is killed. Under 3 s in all."""
        self._log.info("stopping")
        others = {slot for slot in self.processes if slot != watch.KEEPER_SLOT}
        await self._drain(others, FRONT_DRAIN_S)
        await self._drain({watch.KEEPER_SLOT}, KEEPER_DRAIN_S)
        self._log.info("stopped")
        self._stopped.set()

    async def _drain(self, slots: set[int], deadline_s: float) -> None:
        for slot in slots & self.processes.keys():
            starting = self.watch.wards[slot].phase is Phase.STARTING
            self.watch.drained(slot, self.clock.now())
            if starting or not self._tell(slot, frames.Drain(deadline_s)):
                self.processes[slot].kill()
        self._wake.set()
        await self._until_gone(slots, deadline_s + DRAIN_GRACE_S)
        for slot in slots & self.processes.keys():
            self._log.warning("child.killed", **self._who(slot), reason="did not end")
            self.processes[slot].kill()
        await self._until_gone(slots, KILL_GRACE_S)

    async def _until_gone(self, slots: set[int], deadline_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while slots & self.processes.keys():
                    self._gone.clear()
                    await self._gone.wait()

    def _reload(self) -> None:
        """Reads the configuration again; a bad one is refused whole, and the old one stays."""
        try:
            config, password = self._load()
            self._take(config)
        except NacosdnsError as error:
            self._count(metrics.RELOADS.index("failed"))
            self._log.error("reload.refused", reason=str(error))
            return
        self._password = password
        self._password_stamp = _stamp(config)
        self._make_pages()
        for slot in self.processes:
            self._configure(slot)
        logs.configure(config.log.level, role="supervisor")
        self._count(metrics.RELOADS.index("ok"))
        self._log.info("reloaded", config=configuration.digest(config))
        self._wake.set()

    def _take(self, config: Config) -> None:
        """Opens, finds and checks all that the new configuration needs; only then it is ours."""
        old = self.config
        for key, before, after in (
            ("cache.dir", old.cache.dir, config.cache.dir),
            ("server.control_group", old.server.control_group, config.server.control_group),
        ):
            if before != after:
                raise StartError(f"{key} cannot change while nacosdns runs; restart it")
        user = rights.find_user(config.server.user)
        if config.web.listen not in {"", old.web.listen}:
            sockets.check_free(sockets.Endpoint(*configuration.host_port(config.web.listen)), "web.listen")
        if self._want_sockets(config):
            self.watch.renew("front")
        self.config = config
        if config.web != old.web:
            self.watch.renew("web")
        if user != self._user:
            self._user = user
            self._births.owner = rights.owner(user)
            for role in self._modules:
                self.watch.renew(role)
        self.watch.resize(config.server.fronts, self.clock.now(), web=bool(config.web.listen))

    def _configure(self, slot: int) -> None:
        password = self._password if self.watch.wards[slot].role == "keeper" else ""
        if self._tell(slot, frames.Configure(configuration.encode(self.config), password)):
            self._told[slot] = self.config


def _stamp(config: Config) -> int:
    """When the password file was last written; 0 when there is none."""
    try:
        return Path(config.nacos.password_file).stat().st_mtime_ns if config.nacos.password_file else 0
    except OSError:
        return 0
