"""Conductor 1: opens the sockets, starts and watches the other processes, hears signals and control requests.

Must not know: names, services, what is in a packet. Rules: holds no data; decides nothing that core/watch.py can
decide; a wrong configuration or a taken port of DNS is fatal at the start and refused later; nothing else from outside
ends it; a program that an upgrade put in its place goes on with everything it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from nacosdns import config as configuration
from nacosdns import guarding, upgrading
from nacosdns.children import Children
from nacosdns.config_load import read_password
from nacosdns.control import Control
from nacosdns.core import frames, handover, metrics, watch
from nacosdns.core.watch import Phase, Watch
from nacosdns.edge import activation, logs, page, rights, sockets, standing
from nacosdns.edge.clock import HostClock, next_multiple
from nacosdns.edge.cover import Cover
from nacosdns.edge.page import Role, State
from nacosdns.edge.process import Births
from nacosdns.errors import ControlError, NacosdnsError, StartError
from nacosdns.premises import Premises, check_unmoved, whose_children
from nacosdns.service_manager import ServiceManager, in_words
from nacosdns.stopping import Stopping
from nacosdns.surroundings import Secret, Surroundings, check_web
from nacosdns.upgrading import Upgrading
from nacosdns.vigil import Vigil

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nacosdns.config import Config
    from nacosdns.config_load import Source
    from nacosdns.core.handover import Checked, Handover, HeldChild, Upgrade
    from nacosdns.ports import Log

MODULES: Mapping[str, str] = {
    "keeper": "nacosdns.keeper_process",
    "front": "nacosdns.front_process",
    "web": "nacosdns.web",
}
LOOK_AROUND_S = 2.0
_QUERIES_PER_MS = 10  # at 10,000 queries a second, for the log line about receive buffers
_NS = 1_000_000_000


class _Stopped(Exception):  # the good end of the task group
    """All is done: ends every task of the conductor."""


def main(source: Source, modules: Mapping[str, str] = MODULES, *, state_fd: int = -1) -> int:
    """A bridge until it is told to stop; the exit code. ``state_fd`` holds what a running one left to us."""
    standing.ignore_strays()
    upgrading.hold_signals_back()
    left = upgrading.take(state_fd) if state_fd >= 0 else None
    if left:
        source.file = left.config_file or source.file
    config = configuration.decode(left.config) if left else source.read()
    logs.configure(config.log.level, role="supervisor")
    standing.call_me("nacosdns")
    own_rights = standing.keep_rights()
    return asyncio.run(Supervisor(config, source, modules, left=left, own_rights=own_rights).run())


class Supervisor:
    """One bridge. ``source`` is read again at SIGHUP; ``modules`` are the children by role.

    ``left`` is what an earlier supervisor left, when we take its place; ``own_rights`` the one after us gets too.
    """

    def __init__(
        self,
        config: Config,
        source: Source,
        modules: Mapping[str, str] = MODULES,
        *,
        left: Handover | None = None,
        own_rights: int = 0,
    ) -> None:
        self.config = config
        self._source = source
        self._left = left
        self._secret = Secret(left.password if left else "")
        self._refused: dict[str, object] | None = None
        self.clock = HostClock()
        self.counters = metrics.Counters()
        self.listeners = sockets.Listeners()
        self.watch = Watch(config.server.fronts, self.clock.now(), web=bool(config.web.listen))
        self._user = rights.find_user(config.server.user)
        births = Births(rights.owner(self._user), page.memory_file)
        self.children = Children(
            self.watch, births, modules, self.clock, received=self._heard, exited=self._exited, kept=self.wake
        )
        self._premises = Premises(config.cache.dir, config.server.control_group, self._user)
        self._surroundings = Surroundings(self.listeners)
        self._cover = Cover(lambda count: self._count(metrics.COVERED.index(), count))
        self._upgrading = Upgrading(self, left.upgrade if left else None, own_rights)
        self._control = Control(
            self.watch,
            self.children.tell,
            self._overview,
            upgrade=lambda: self._upgrading.begin(self._group),
            upgraded=lambda: self._upgrading.last,
            config=lambda: configuration.encode(self.config),
        )
        self._manager = ServiceManager(
            activation.Notifier(os.environ.get("NOTIFY_SOCKET", "")),
            activation.watchdog_s(os.environ),
            announced=bool(left and left.announced),
        )
        self._vigil = Vigil(
            self.listeners,
            self.children,
            self.clock,
            counters=self.counters,
            present=self._surroundings.present,
            silent=lambda slot: self.children.kill(slot, "does not answer"),
        )
        self._wake = asyncio.Event()
        self._stopping = Stopping(self.watch, self.children, self.clock, self.wake)
        self._stopped = asyncio.Event()
        self._exit_code = 0
        self._log: Log = logs.log()

    def __repr__(self) -> str:
        return f"<Supervisor {self.listeners} {self.watch}>"

    # Life

    async def run(self) -> int:
        """Runs the bridge until it is told to stop; the exit code. StartError when this host does not let it start."""
        with contextlib.ExitStack() as resources:
            resources.callback(self.children.kill_all)
            resources.callback(self.listeners.close)
            if self._left:
                self._adopt(self._left, resources)
            else:
                self._open(resources)
            try:
                async with asyncio.TaskGroup() as self._group:
                    for part in (self._conduct(), self._judge(), self._look_around(), self._end()):
                        self._group.create_task(part)
                    for part in (self._vigil.run(self._tell_manager), self._upgrading.finish()):
                        self._group.create_task(part)
                    self._group.create_task(self._premises.control.serve(self._control.answer))
                    self._guarding = self._group.create_task(guarding.keep(lambda: self.config, self._log))
                    self._hear_signals()
            except ExceptionGroup as group:  # whatever else failed at such a start follows from it
                refused, others = group.subgroup(StartError), group.split(_Stopped)[1]
                if refused or others:
                    raise (refused.exceptions[0] if refused else group) from None
        return self._exit_code

    def _open(self, resources: contextlib.ExitStack) -> None:
        """Takes everything that the bridge needs of this host; ``resources`` gives it back."""
        server = self.config.server
        self.listeners.take_given(activation.given_sockets(os.environ))
        self._surroundings.want(self.config)
        for endpoint in self.listeners.shared():
            self._log.warning("listen.shared", address=str(endpoint), fronts=server.fronts)
        self._premises.open(resources)
        self._secret.look(self.config)
        self.children.make_pages()
        self.children.own.claim(Role.SUPERVISOR, os.getpid(), self.clock.now_ns())
        self.children.own.state = State.READY
        buffer_bytes = self.listeners.receive_buffer_bytes()
        self._log.info(
            "started",
            listen=",".join(map(str, self.listeners.wanted)),
            fronts=server.fronts,
            config=configuration.digest(self.config),
            receive_buffer_bytes=buffer_bytes,
            receive_buffer_ms=buffer_bytes // sockets.QUERY_BUFFER_BYTES // _QUERIES_PER_MS,
        )
        self._surroundings.warn_of_strangers(self.config)

    # Taking a place

    def hold(self, upgrade: Upgrade, checked: Checked | None, fresh: HeldChild | None) -> Handover:
        """All that outlives us in an upgrade, at this moment."""
        self.counters.flush_into(self.children.own.counters)
        config = self.config
        pages = self.children.spare_pages()
        if fresh:
            pages.pop(fresh.slot, None)
        return handover.Handover(
            upgrade=upgrade,
            config=checked.config if checked else configuration.encode(config),
            password=checked.password if checked else self._secret.value,
            config_file=self._source.file,
            directory=str(self._premises.directory),
            disk_fault=self._premises.fault,
            cache_dir=config.cache.dir,
            control_group=config.server.control_group,
            web_listen=config.web.listen,
            web_fd=web.fileno() if (web := self._surroundings.web) and checked and checked.takes_web else -1,
            user=config.server.user,
            fronts=config.server.fronts,
            sockets=self.listeners.hold(),
            late=tuple(self.listeners.late),
            link=self._premises.link.hold(),
            control=self._premises.control.hold(),
            own_page_fd=self.children.own.fd,
            pages=pages,
            children=(*self.children.hold(), *filter(None, (fresh,))),
            counters=handover.counters(),
            next_id=self._control.next_id,
            announced=self._manager.announced,
        )

    def _adopt(self, left: Handover, resources: contextlib.ExitStack) -> None:
        """Goes on with everything that the old code held. What can fail here was tried by the self-check."""
        self.listeners.adopt(left.sockets, left.late, left.fronts)
        self._surroundings.adopt_web(left.web_fd, left.web_listen, self.config)
        self._premises.adopt(left)
        resources.enter_context(self._premises.link)
        resources.enter_context(self._premises.control)
        self._control.next_id = left.next_id
        self.children.adopt(left, self.clock.now(), self.config)
        self._log.info("upgrade.took_over", release=left.upgrade.after, config=configuration.digest(self.config))
        if left.user != self.config.server.user:
            self._premises.give_to(self._user)
        self._look_for_sockets()
        self.children.make_pages()

    @property
    def web_fault(self) -> str:
        """Why web cannot listen, if so: nobody waits for it then."""
        return self._surroundings.web_fault

    @property
    def link_path(self) -> str:
        """Where fronts find the keeper."""
        return self._premises.link_path

    def is_busy(self) -> bool:
        """Whether an operator waits for an answer of a child, or a new web is on its way."""
        return self._control.busy or self.children.waits_for_heir(watch.WEB_SLOT)

    def wake(self) -> None:
        """Has the plan looked at again."""
        self._wake.set()

    def _upgrade_by_signal(self) -> None:
        try:
            self._upgrading.begin(self._group)
        except ControlError as error:
            self._log.warning("upgrade.refused", reason=str(error))

    # Life with others

    async def _end(self) -> None:
        await self._stopped.wait()
        raise _Stopped

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR2, self._upgrade_by_signal)
        upgrading.hear_signals_again()

    def _tell_manager(self, canary_age_s: float) -> None:
        if self._manager:
            upgrade, fault = self._upgrading.last, self._premises.fault
            words = in_words(self.watch, self.listeners.wanted, upgrade, has_disk=not fault)
            self._manager.look(self.clock.now(), canary_age_s, words)

    # Children

    async def _conduct(self) -> None:
        while True:
            self._wake.clear()
            for action in self.watch.plan(self.clock.now()):
                self._do(action)
            due_at = self.watch.due_at()
            wait_s = None if due_at is None else max(0.0, due_at - self.clock.now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _do(self, action: watch.Action) -> None:
        match action:
            case watch.Spawn(slot):
                self._spawn(slot)
            case watch.Kill(slot, reason):
                if not self.children.waits_for_heir(slot):
                    self.children.kill(slot, reason)
            case watch.Activate(slot, own):
                self._log.info("front.reads", slot=slot, sockets=list(own))
                self.children.tell(slot, frames.Activate(own))
            case watch.Drain(slot, deadline_s):
                self._drain(slot, deadline_s)
            case watch.Cover(own):
                self._cover_slots(own)

    def _cover_slots(self, own: tuple[int, ...]) -> None:
        """What systemd holds too outlives us: whoever asks while we stop is answered by the next one."""
        stopping = self.watch.stopping
        pairs = [pair for slot in own for pair in self.listeners.pairs(slot) if not (stopping and pair.given)]
        if pairs or not own:
            alarming = own and not stopping
            (self._log.warning if alarming else self._log.info)("front.covered", sockets=list(own))
        self._cover.set((pair.udp, pair.tcp) for pair in pairs)

    def _spawn(self, slot: int) -> None:
        role = self.watch.wards[slot].role
        self.watch.spawned(slot, self.clock.now())
        if role == "web" and not self._surroundings.has_room_for_web(self.config):
            self.watch.exited(slot, self.clock.now())
            return
        if not self.children.is_first(slot):
            self._count(metrics.RESTARTS.index(role))
        try:
            self.children.spawn(slot, *self._setup(slot), self.clock.now_ns())
        except OSError as error:
            if isinstance(error, PermissionError) and self.children.none_was_told:
                raise rights.cannot_run(self._user, error) from error
            self.children.not_started(slot, error)
            self.watch.exited(slot, self.clock.now())
            return
        self.children.told(slot, self.config)

    def _setup(self, slot: int) -> tuple[frames.ChildSetup, list[int]]:
        self.children.fresh_page(slot)
        return self.children.setup(
            slot,
            self.config,
            password=self._secret.value,
            listeners=self.listeners,
            link=self._premises.link,
            web=self._surroundings.web,
        )

    def _drain(self, slot: int, deadline_s: float) -> None:
        """Ends a child in order; a web only when the next one is set up, so that nobody who asks waits for its start."""
        ward = self.watch.wards[slot]
        if ward.role == "web" and not ward.surplus and self._surroundings.can_have_two_webs(self.config):
            self.children.replace(slot, self._setup, deadline_s)
        else:
            self.children.drain(slot, deadline_s)

    def _heard(self, slot: int, frame: frames.ChannelFrame) -> None:
        match frame:
            case frames.Ready(services=services):
                self._log.info("child.ready", **self.children.who(slot), services=services)
                self.watch.ready(slot)
                if not self.children.knows(slot, self.config):
                    self.children.configure(slot, self.config, self._secret.value)
                self._wake.set()
            case frames.Told():
                self._control.told(slot, frame)
            case _:
                self._log.warning("channel.unexpected", frame=type(frame).__name__, slot=slot)

    def _exited(self, slot: int, status: int) -> None:
        ward = self.watch.wards[slot]
        in_order = status == 0 and self.children.pages[slot].state is State.DRAINING  # it drained of its own accord
        expected = ward.phase is Phase.DRAINING or in_order or self.watch.stopping
        (self._log.info if expected else self._log.warning)("child.exited", **self.children.end_of(slot, status))
        self._control.lost(slot)
        self.watch.exited(slot, self.clock.now(), in_order=in_order)
        self._stopping.gone()
        self._wake.set()

    def _overview(self) -> dict[str, object]:
        """Our own part of `nacosdns status`."""
        now_ns, own = self.clock.now_ns(), self.children.own
        return {
            "pid": os.getpid(),
            "up_s": (now_ns - own.started_ns) / _NS,
            "config": configuration.digest(self.config),
            "listen": [str(endpoint) for endpoint in self.listeners.wanted],
            "missing": [*self.listeners.missing, *map(str, self.listeners.late)],
            "canary_age_s": (now_ns - own.canary_ns) / _NS if own.canary_ns else None,
            "receive_buffer_bytes": self.listeners.receive_buffer_bytes(),
            "covered": list(self.watch.covered),
            "disk": self._premises.fault,
            "web": self._surroundings.web_fault,
            "password": self._secret.refused,
            "reload": self._refused,
            "upgrade": self._upgrading.last,
            "children": self.children.describe(now_ns),
        }

    def _count(self, index: int, times: int = 1) -> None:
        self.counters[index] += times

    # Watching

    async def _judge(self) -> None:
        own = self.children.own
        while True:
            await next_multiple(watch.JUDGE_S)
            now_ns = self.clock.now_ns()
            for action in self.watch.judge(now_ns / _NS, self.children.ages_s(now_ns)):
                self._do(action)
            for role in ("keeper", "front", "web"):
                alive = [w for w in self.watch.wards.values() if w.role == role and w.phase is Phase.READY]
                self.counters.set(metrics.ALIVE.index(role), len(alive))
            own.beat(now_ns)
            self.counters.flush_into(own.counters)

    async def _look_around(self) -> None:
        """Sees what changes on a host without telling: addresses, interfaces, the password file, our directory."""
        while True:
            await next_multiple(LOOK_AROUND_S)
            self._look_for_sockets()
            if self._secret.look(self.config):
                self._log.info("password.changed")
                self.children.configure(watch.KEEPER_SLOT, self.config, self._secret.value)
            if self._premises.look():
                self.watch.renew("keeper")
                self._wake.set()
            if self.watch.is_settled:
                self.listeners.close_unwanted()

    def _look_for_sockets(self) -> None:
        if self._surroundings.look(self.config):
            self.watch.renew("front")
            self._wake.set()

    # Signals

    def _told_to_stop(self) -> None:
        if self.watch.stopping:
            self._log.warning("stopping.at_once")
            self._exit_code = 1
            self._stopped.set()
            return
        self.watch.stopping = True
        self._upgrading.give_up("nacosdns was told to stop")
        self._surroundings.forget_web()
        self._manager.stopping()
        self._group.create_task(self._stop())

    async def _stop(self) -> None:
        self._guarding.cancel()  # it gives resolv.conf back while we still answer
        await asyncio.wait({self._guarding}, timeout=2 * guarding.STOP_S)
        await self._stopping.stop()
        self._stopped.set()

    def _reload(self) -> None:
        """Reads the configuration again; a bad one is refused whole, and the old one stays."""
        self._manager.reloading()
        try:
            config = self._source.read()
            password = read_password(config)
            self._take(config)
        except NacosdnsError as error:
            self._count(metrics.RELOADS.index("failed"))
            self._refused = {"refused": str(error), "at": time.time()}
            self._log.error("reload.refused", reason=str(error))
            return
        finally:
            self._manager.reloaded()
        self._upgrading.give_up("the configuration was read again meanwhile; say it once more")
        self._refused = None
        self._secret.take(config, password)
        if self.children.make_pages():
            self.watch.renew("web")  # it has to be born anew to see them
        for slot in self.children.slots:
            self.children.configure(slot, self.config, self._secret.value)
        logs.configure(config.log.level, role="supervisor")
        self._count(metrics.RELOADS.index("ok"))
        self._log.info("reloaded", config=configuration.digest(config))
        self._surroundings.warn_of_strangers(self.config)
        self._wake.set()

    def _take(self, config: Config) -> None:
        """Opens, finds and checks all that the new configuration needs; only then it is ours."""
        old = self.config
        check_unmoved(config, old.cache.dir, old.server.control_group)
        user = whose_children(config)
        if config.web.listen != old.web.listen:
            check_web(config)
        has_new_sockets = self._surroundings.want(config)
        if user != self._user:
            self._premises.give_to(user)
        if has_new_sockets:
            self.watch.renew("front")
        self.config = config
        if config.web != old.web:
            self._surroundings.forget_web(config.web.listen)
            self.watch.renew("web")
        if user != self._user:
            self._user = user
            self.children.births.owner = rights.owner(user)
            for role in MODULES:
                self.watch.renew(role)
        self.watch.resize(config.server.fronts, self.clock.now(), web=bool(config.web.listen))
