"""The process of a front: builds it from a configuration and joins it to its sockets, the link, the disk and upstreams.

Must not know: what is answered and why. Rules: everything is imported and the disk read before READY; the sockets are the
supervisor's and are never closed here; ``activate`` says which of them are read; a large disk is read while questions are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import random
import socket
import sqlite3
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from nacosdns import child, config_load, plugins
from nacosdns import config as configuration
from nacosdns.core import metrics
from nacosdns.core.access import Access
from nacosdns.core.book import Book
from nacosdns.core.errands import ForwardSettings
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.frames import VERSION, Hello, known
from nacosdns.core.model import Snapshot, Source
from nacosdns.core.pipeline import Pipeline, Settings
from nacosdns.core.querylog import QueryLog
from nacosdns.core.resolvers import ours, parse_endpoint
from nacosdns.edge import host, link, resolvconf, store
from nacosdns.edge.clock import next_multiple
from nacosdns.edge.tcp import TcpDoor
from nacosdns.edge.udp import make_door, reply_vector
from nacosdns.edge.upstream import UpstreamSockets
from nacosdns.edge.watch import PollingWatcher
from nacosdns.errors import ConfigError, ControlError, StoreError, UpstreamError
from nacosdns.front import Front, client_text
from nacosdns.front_control import FrontControl

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping

    from nacosdns.child import Child
    from nacosdns.config import Config
    from nacosdns.core.balance import Balancer
    from nacosdns.core.frames import LinkFrame
    from nacosdns.core.model import ServiceKey
    from nacosdns.edge.store import StoredService
    from nacosdns.edge.udp import UdpDoor
    from nacosdns.ports import Link

GAUGES_S = 2.0
PAGES_LOOKED_AT = 1000  # each time, for whether their answers were used
DRAIN_STEP_S = 0.01
RESOLV_CONF = "resolv.conf"
FIRST_ROWS = 2000
"""Services that are read from the disk before the first answer; 15 ms."""
PART_ROWS = 100
"""Services that are read between two turns of the loop; 1 ms."""


class FrontProcess:
    """Implements child.Conductor, and ports.LinkListener for the front."""

    def __init__(self, born: Child) -> None:
        self._child = born
        self._rng = random.SystemRandom()  # what a forger must not guess
        self._draws = random.Random(self._rng.getrandbits(64))  # noqa: S311  # a balancer draws often; nobody gains by guessing
        self._book = Book(reply_vector())
        self._balancers = plugins.needed_balancers(balancers_of(born.config))
        self._forwarding = Forwarding(forward_settings(born.config, host_identity()), self._rng)
        self._pipeline = self._make_pipeline(born.config)
        self._front = Front(
            pipeline=self._pipeline,
            book=self._book,
            forwarding=self._forwarding,
            clock=born.clock,
            counters=born.counters,
            log=born.log,
            find_on_disk=self._find_on_disk,
        )
        self._control = FrontControl(self._front, self._pipeline, self._book, self._forwarding, born.clock)
        self._tcp = TcpDoor(
            self._front,
            self._spawn,
            connections_max=born.config.server.tcp_connections,
            idle_s=born.config.server.tcp_idle_s,
        )
        self._front.use_query_log(QueryLog(born.config.log.queries))
        self._sockets: dict[int, list[socket.socket]] = {}
        self._doors: dict[int, list[UdpDoor]] = {}
        self._wanted: tuple[int, ...] = born.setup.active
        self._tasks: asyncio.TaskGroup | None = None
        self._disk = store.Reader(None)
        self._followed: set[str] = set()
        self._lonely = False

    def __repr__(self) -> str:
        return f"<FrontProcess slots={sorted(self._doors)} {self._front!r}>"

    # --- building

    def _make_pipeline(self, config: Config) -> Pipeline:
        link = [str(address.network) for address in host.addresses()]
        self._allowed = Access(config.server.allow, link)
        self._refused, self._refused_at = 0, -inf
        return make_pipeline(
            config,
            self._book,
            self._balancers,
            self._draws,
            allowed=self._allowed,
            judges=not self._only_loopback(),
            nameserver=self._nameserver(),
            identity=host_identity(),
        )

    def _addresses(self) -> list[str]:
        return [address for one in self._child.setup.sockets for _, address in one.udp]

    def _only_loopback(self) -> bool:
        hosts = [parse_endpoint(address).host for address in self._addresses()]
        return all(host_.startswith("127.") or host_ == "::1" for host_ in hosts)

    def _nameserver(self) -> str:
        hosts = [parse_endpoint(address).host.partition("%")[0] for address in self._addresses()]
        return next((host_ for host_ in hosts if host_ not in {"0.0.0.0", "::"}), "127.0.0.1")  # noqa: S104

    # --- life

    async def run(self) -> None:
        with contextlib.ExitStack() as disk:
            loaded = self._read_recent(disk)
            await self._work(disk.pop_all(), loaded | self._read_static())

    async def _work(self, disk: contextlib.ExitStack, loaded: set[ServiceKey]) -> None:
        self._open_sockets()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            front = self._front
            upstream = UpstreamSockets(
                front.received, front.failed, self._spawn, hindered=front.hindered, settled=front.settled
            )
            front.use_upstream(upstream)
            self._find_upstreams()
            tasks.create_task(self._join(disk, loaded))
            tasks.create_task(self._gauges(upstream))
            self.activate(self._wanted)
            self._child.ready(len(self._book))

    async def _join(self, disk: contextlib.ExitStack, loaded: set[ServiceKey]) -> None:
        """Reads the rest of the disk, then follows the keeper: what it tells is newer than what the disk holds."""
        with self._reports_a_bad_disk(), disk:
            await self._read_rest(loaded)
        self._disk = store.Reader(None)
        gc.freeze()
        await link.connect(self._child.setup.link_path, self, self._hello(), self._child.log)

    async def _read_rest(self, loaded: set[ServiceKey]) -> None:
        """What the disk holds beside ``loaded``, in small parts; those who wait for one of them are answered."""
        for rows in self._disk.parts(PART_ROWS):
            self._learn(row for row in rows if row.known.key not in loaded)
            self._front.known_more()
            await asyncio.sleep(0)

    def _hello(self) -> Hello:
        return Hello(VERSION, "front")

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(work)

    def _read_recent(self, disk: contextlib.ExitStack) -> set[ServiceKey]:
        """What was asked for last is served at once, before the registry is reached; ``disk`` closes the file."""
        clock = self._child.clock
        contents = store.Contents()
        with self._reports_a_bad_disk():
            self._disk = disk.enter_context(store.reading(self._child.config.cache.dir))
            contents = self._disk.recent(FIRST_ROWS)
        self._learn(contents.services)
        self._forwarding.outside.restore(contents.externals, now=clock.now(), wall=clock.wall())
        return {row.known.key for row in contents.services}

    @contextlib.contextmanager
    def _reports_a_bad_disk(self) -> Iterator[None]:
        """It is the keeper's business to set it aside."""
        try:
            yield
        except (StoreError, sqlite3.Error) as error:
            self._child.log.warning("front.disk_not_read", reason=str(error))

    def _find_on_disk(self, keys: Iterable[ServiceKey]) -> bool:
        """Whether one of these services is in the part of the disk that is not read yet; it is known then."""
        found: list[StoredService] = []
        with self._reports_a_bad_disk():
            found += filter(None, map(self._disk.find, keys))
        self._learn(found)
        return bool(found)

    def _learn(self, rows: Iterable[StoredService]) -> None:
        for row in rows:
            self._book.update(row.known)
            self._pipeline.appeared(row.known.key)

    def _read_static(self) -> set[ServiceKey]:
        """Static services win also while the keeper is away; the keeper tells of later changes."""
        config = self._child.config
        services = configuration.static_services(config)
        if config.static_file:
            try:
                services |= configuration.static_services(config, config_load.load_static(config.static_file))
            except ConfigError as error:
                self._child.log.warning("static_file.refused", reason=str(error))
        for key, view in services.items():
            self._book.update(known(Snapshot(key, view.instances, source=Source.STATIC, live=True)))
            self._pipeline.appeared(key)
        return set(services)

    def _open_sockets(self) -> None:
        for one in self._child.setup.sockets:
            doors = [self._make_door(fd) for fd, _ in one.udp]
            self._doors[one.slot] = doors
            self._sockets[one.slot] = [socket.socket(fileno=fd) for fd, _ in one.tcp]

    def _make_door(self, fd: int) -> UdpDoor:
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        judged = None if self._only_loopback() else self._allowed.judged
        return make_door(sock, self._book.prepared, self._front, self._child.clock.now, allowed=judged)

    def activate(self, slots: tuple[int, ...]) -> None:
        """Reads exactly these slots' sockets."""
        self._wanted = slots
        if self._tasks is None:
            return
        for slot, doors in self._doors.items():
            for door in doors:
                if slot in slots:
                    door.open()
                else:
                    door.close()
        for slot, listeners in self._sockets.items():
            for listener in listeners:
                if slot in slots:
                    self._tcp.listen(listener)
                else:
                    self._tcp.stop(listener)

    def configure(self, config: Config, password: str) -> None:
        """Names, policies and upstreams change in place; what is known and cached stays."""
        del password
        self._tcp.configure(connections_max=config.server.tcp_connections, idle_s=config.server.tcp_idle_s)
        self._forwarding.configure(forward_settings(config, host_identity()))
        self._balancers = plugins.needed_balancers(balancers_of(config))
        self._pipeline = self._make_pipeline(config)
        self._front.use_query_log(QueryLog(config.log.queries))
        self._front.use_pipeline(self._pipeline)
        self._control.use_pipeline(self._pipeline)
        for doors in self._doors.values():
            for door in doors:
                door.use_allowed(None if self._only_loopback() else self._allowed.judged)
        self._find_upstreams()

    async def drain(self, deadline_s: float) -> None:
        """Stops reading; who waits still gets an answer, within the deadline."""
        self.activate(())
        for _ in range(2):  # the rest of the round that is under way, and all
            self._front.teller.report_used(sys.maxsize)
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline_s
        while (self._front.busy() or self._tcp.busy()) and loop.time() < ends:  # noqa: ASYNC110  # they share no event
            await asyncio.sleep(DRAIN_STEP_S)
        self._front.teller.tell_learned()
        self._tcp.close()
        self._front.close()

    # --- upstreams

    def _find_upstreams(self) -> None:
        """The configured upstreams; ``resolv.conf`` stands for the servers of the file that means it here."""
        config = self._child.config
        mine = ours(self._addresses(), resolvconf.local_addresses())
        self._control.wants_upstreams = bool(config.forward.upstreams)
        wanted: list[str] = []
        for entry in config.forward.upstreams:
            wanted += self._from_resolv_conf(config) if entry == RESOLV_CONF else [entry]
        before = [resolver.address for resolver in self._forwarding.resolvers]
        self._forwarding.set_upstreams(list(dict.fromkeys(wanted)), mine, self._child.clock.now())
        after = [resolver.address for resolver in self._forwarding.resolvers]
        if after != before:
            self._child.log.info("upstreams.set", upstreams=after)
        self._say_when_nobody_is_left(somebody=bool(after))
        self._front.start()

    def _say_when_nobody_is_left(self, *, somebody: bool) -> None:
        if not somebody and self._child.config.forward.upstreams and not self._lonely:
            self._child.log.warning("upstreams.none", reason=self._forwarding.resolvers.why_nobody())
        self._lonely = not somebody

    def _from_resolv_conf(self, config: Config) -> list[str]:
        paths = resolvconf.candidates(config.cache.dir, config.forward.resolv_conf)
        if fresh := set(paths) - self._followed:
            self._followed |= fresh
            for path in fresh:
                self._spawn(PollingWatcher().watch(path, self._find_upstreams))
            asyncio.get_running_loop().call_soon(self._find_upstreams)  # a change before their first look is ours
        mine = ours(self._addresses(), resolvconf.local_addresses())
        found = resolvconf.choose(paths, lambda server: _is_ours(server, mine))
        for warning in found.warnings:
            self._child.log.warning("resolv_conf.odd", path=found.path, reason=warning)
        return list(found.nameservers)

    # --- the link

    def joined(self, to: Link, peer: Hello) -> None:
        self._front.joined(to, peer)

    def received(self, to: Link, frame: LinkFrame) -> None:
        self._front.heard(to, frame)

    def drained(self, to: Link) -> None:
        self._front.drained(to)

    def left(self, to: Link) -> None:
        self._front.left(to)

    async def _gauges(self, upstream: UpstreamSockets) -> None:
        while True:
            self._front.count_batches()
            self._control.gauges(self._child.counters, strays=upstream.strays)
            for address, health, error in self._control.changed_upstreams():
                why = {"was": error} if health == "up" else {"last_error": error}
                self._child.log.warning("upstream.health", upstream=address, health=health, **why)
            if (changed := self._control.changed_hindrance()) is not None:
                self._say_what_hinders(*changed)
            if self._allowed.refused_queries > self._refused:
                self._refused, self._refused_at = self._allowed.refused_queries, self._child.clock.now()
            self._child.counters.set(metrics.TCP_CONNECTIONS.first, len(self._tcp))
            self._front.teller.report_used(PAGES_LOOKED_AT)
            await next_multiple(GAUGES_S)

    def _say_what_hinders(self, before: str, now: str) -> None:
        if now:
            used, limit = host.open_files()
            self._child.log.warning("front.hindered", reason=now, files=used, files_max=limit)
        else:
            self._child.log.info("front.unhindered", was=before)

    # --- control

    async def answer(self, verb: str, arguments: dict[str, object]) -> object:
        """Control verbs: ask, cache.list, cache.flush, status, modules (for a test of ours)."""
        match verb:
            case "ask":
                return await self._control.ask(str(arguments.get("name", "")), str(arguments.get("type", "A")))
            case "cache.list":
                return self._control.cached()
            case "cache.flush":
                return await self._control.flush(str(arguments.get("name", "")))
            case "status":
                return self._control.status() | self._own_status()
            case "modules":
                return sorted(sys.modules)
            case _:
                raise ControlError(f"a front does not know {verb!r}")

    def _own_status(self) -> dict[str, object]:
        used, limit = host.open_files()
        return {
            "upstreams_wanted": bool(self._child.config.forward.upstreams),
            "files": {"used": used, "limit": limit},
            "refused_clients": self._allowed.refused_count,
            "refused_last": client_text(self._allowed.refused_last) if self._allowed.refused_last else "",
            "refused_last_s": None
            if self._refused_at == -inf
            else round(self._child.clock.now() - self._refused_at, 1),
            "tasks": len(asyncio.all_tasks()),
        }


def make_pipeline(  # what a pipeline is made of
    config: Config,
    book: Book,
    balancers: Mapping[str, type[Balancer]],
    rng: random.Random,
    *,
    allowed: Access,
    judges: bool,
    nameserver: str,
    identity: bytes,
) -> Pipeline:
    """The pipeline of a configuration."""
    names = configuration.names(config, book.groups)
    settings = Settings(
        lookup_s=config.server.lookup_ms / 1000,
        stale_wait_s=config.cache.stale_wait_ms / 1000,
        disk_fresh_s=config.cache.disk_fresh_s,
        nameserver=nameserver,
        identity=identity,
    )
    return Pipeline(
        names=names,
        policies=configuration.policies(config),
        balancers=balancers,
        book=book,
        allowed=allowed,
        judges=judges,
        rng=rng,
        settings=settings,
    )


def balancers_of(config: Config) -> set[str]:
    """The balancers that a configuration names."""
    return {section.balancer for section in (config.policy, *config.policies.values())}


def forward_settings(config: Config, identity: bytes) -> ForwardSettings:
    """What forwarding takes of a configuration."""
    return ForwardSettings(
        external_entries=config.cache.external_entries,
        external_stale_s=config.cache.external_stale_s,
        identity=identity[:8],
    )


def _is_ours(server: str, mine: object) -> bool:
    try:
        return parse_endpoint(server) in mine  # type: ignore[operator]
    except UpstreamError:
        return False


def host_identity() -> bytes:
    """What tells this host from others of the fleet, the same in all its processes."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return hashlib.blake2b(Path(path).read_bytes() + socket.gethostname().encode(), digest_size=16).digest()
        except OSError:
            continue
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=16).digest()


if __name__ == "__main__":
    child.main(FrontProcess)
