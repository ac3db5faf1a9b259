"""The process of the keeper: builds it from a configuration and joins it to Nacos, disk, link and static file.

Must not know: what is believed and why (core/services.py). Rule: what a new configuration changes in place is changed
in place; what only a new connection to the registry can change ends this process, which the supervisor replaces.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from datetime import datetime
from typing import TYPE_CHECKING

from nacosdns import child, config_load
from nacosdns import config as configuration
from nacosdns.core import metrics
from nacosdns.core.dnsname import labels_of, text_name
from nacosdns.core.frames import VERSION, Hello
from nacosdns.core.model import Protection
from nacosdns.core.naming import ServiceName
from nacosdns.core.schedule import Settings as ScheduleSettings
from nacosdns.core.services import Settings as ServicesSettings
from nacosdns.edge import link
from nacosdns.edge.clock import next_multiple
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import settings_of
from nacosdns.edge.store import SqliteStore
from nacosdns.edge.watch import PollingWatcher
from nacosdns.errors import ConfigError, ControlError
from nacosdns.keeper import Keeper
from nacosdns.keeper_control import KeeperControl
from nacosdns.locating import Locator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nacosdns.child import Child
    from nacosdns.config import Config
    from nacosdns.core.model import Instance, ServiceKey
    from nacosdns.core.naming import Names

GAUGES_S = 2.0
REQUEST_KINDS = ("query", "subscribe", "unsubscribe", "list")


class KeeperProcess:
    """Implements child.Conductor."""

    def __init__(self, born: Child) -> None:
        self._child = born
        config = self._before = born.config
        self._rng = random.SystemRandom()
        self._file_services: Mapping[ServiceKey, tuple[Instance, ...]] = {}
        self._file_refused = ""
        self._store = SqliteStore(config.cache.dir, external_entries=config.cache.external_entries, log=born.log)
        self._registry = self._make_registry(config)
        self._names = configuration.names(config)
        self._keeper = Keeper(
            policies=configuration.policies(config),
            services=services_settings(config),
            schedule=schedule_settings(config, self._names),
            registry=self._registry,
            store=self._store,
            clock=born.clock,
            rng=self._rng,
            log=born.log,
            counters=born.counters,
            epoch=time.time_ns() // 1_000_000,
        )
        self._totals = metrics.Totals()
        self._control = KeeperControl(self._keeper, self._names)

    def __repr__(self) -> str:
        return f"<KeeperProcess {self._keeper!r}>"

    def _make_registry(self, config: Config) -> NacosRegistry | None:
        nacos = config.nacos
        if not nacos.servers and not nacos.endpoint:
            return None
        locator = Locator(config, self._child.log)
        settings = settings_of(nacos, self._child.password, locate=locator.addresses)
        return NacosRegistry(settings, configuration.namespaces(config), self._child.log)

    async def run(self) -> None:
        loaded = await self._keeper.load()
        self._read_static_file()
        listener = socket.socket(fileno=self._child.setup.link_fd)
        hello = Hello(VERSION, "keeper", self._keeper.epoch)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keeper.run())
            tasks.create_task(link.serve(listener, self._keeper, hello, self._child.log))
            tasks.create_task(self._watch_static_file())
            tasks.create_task(self._gauges())
            self._child.ready(loaded)

    # --- static services

    def _set_static(self, config: Config) -> None:
        listed = {key: view.instances for key, view in configuration.static_services(config).items()}
        self._keeper.set_static({**listed, **self._file_services})

    def _read_static_file(self) -> None:
        """A file that cannot be read changes nothing: what it said before holds."""
        config = self._child.config
        self._file_refused = ""
        if config.static_file:
            try:
                sections = config_load.load_static(config.static_file)
            except ConfigError as error:
                self._file_refused = str(error)
                self._child.log.error("static_file.refused", reason=str(error))
            else:
                views = configuration.static_services(config, sections)
                self._file_services = {key: view.instances for key, view in views.items()}
                self._child.log.info("static_file.read", services=len(views))
        else:
            self._file_services = {}
        self._set_static(config)

    async def _watch_static_file(self) -> None:
        if self._child.config.static_file:
            await PollingWatcher().watch(self._child.config.static_file, self._read_static_file)

    # --- the supervisor

    def configure(self, config: Config, password: str) -> None:
        """Policies, times and static services change in place; another Nacos, namespace or directory needs a new keeper."""
        if self._needs_a_new_keeper(config):
            self._child.log.info("keeper.renewed", reason="the new configuration needs other connections")
            signal.raise_signal(signal.SIGTERM)  # child.py drains and saves; the supervisor starts the next one
            return
        self._before = config
        self._names = configuration.names(config)
        self._control = KeeperControl(self._keeper, self._names)
        self._keeper.reconfigure(
            policies=configuration.policies(config),
            services=services_settings(config),
            schedule=schedule_settings(config, self._names),
        )
        if self._registry is not None:
            self._registry.set_password(password)
        self._read_static_file()

    def _needs_a_new_keeper(self, config: Config) -> bool:
        old = self._before
        connections = ("servers", "endpoint", "context_path", "username", "ca_file", "cert_file", "key_file")
        return (
            any(getattr(old.nacos, key) != getattr(config.nacos, key) for key in connections)
            or configuration.namespaces(old) != configuration.namespaces(config)
            or old.cache != config.cache
            or old.static_file != config.static_file
        )

    def activate(self, slots: tuple[int, ...]) -> None:
        """Fronts only."""
        del slots

    async def drain(self, deadline_s: float) -> None:
        """Saves."""
        async with asyncio.timeout(deadline_s):
            await self._keeper.stop()

    async def answer(self, verb: str, arguments: dict[str, object]) -> object:
        """Control verbs: services, status, cache.flush, cache.accept."""
        match verb:
            case "services":
                return self._control.page(arguments)
            case "status":
                own = {"static_file_refused": self._file_refused, "tasks": len(asyncio.all_tasks())}
                return self._control.status() | own
            case "cache.accept":
                return {"accepted": self._keeper.accept()}
            case "cache.flush":
                return self._control.flush(str(arguments.get("name", "")))
            case _:
                raise ControlError(f"the keeper does not know {verb!r}")

    async def _gauges(self) -> None:
        while True:
            self._set_gauges()
            await next_multiple(GAUGES_S)

    def _set_gauges(self) -> None:
        counters = self._child.counters
        counts = self._control.counts()
        counters.set(metrics.SERVICES_KNOWN.first, counts.services)
        counters.set(metrics.SUBSCRIPTIONS.first, counts.subscribed)
        counters.set(metrics.OLDEST_CONFIRMATION.first, int(counts.oldest_confirmation_s * 1e6))
        counters.set(metrics.REGISTRY_CONNECTED.first, counts.connected)
        counters.set(metrics.REGISTRY_NAMESPACES.first, counts.namespaces)
        self._totals.add(counters, metrics.STORE_WRITES.first, self._store.writes)
        self._totals.add(counters, metrics.STORE_FAILURES.first, self._store.failures)
        self._totals.add(counters, metrics.STORE_DAMAGED.first, self._store.damaged)
        if self._registry is not None:
            for word, total in self._registry.requests.items():
                if word in REQUEST_KINDS:
                    self._totals.add(counters, metrics.REGISTRY_REQUESTS.index(word), total)
        for kind in (Protection.EMPTY, Protection.SHRINK, Protection.HELD, Protection.BRAKE):
            counters.set(metrics.PROTECTED.index(kind.value), counts.protected.get(kind, 0))


def services_settings(config: Config) -> ServicesSettings:
    """Protection's times."""
    accept = config.policy.accept_before
    return ServicesSettings(
        settle_s=config.nacos.settle_s,
        stable_s=config.nacos.stable_s,
        brake_max_s=config.nacos.brake_max_s,
        accept_before=datetime.fromisoformat(accept).timestamp() if accept else 0.0,
    )


def schedule_settings(config: Config, naming: Names) -> ScheduleSettings:
    """What is asked when; without Nacos there are no namespaces to ask."""
    zones = configuration.zones(config)
    has_nacos = bool(config.nacos.servers or config.nacos.endpoint)
    return ScheduleSettings(
        pull_s=config.nacos.pull_s,
        idle_s=config.nacos.idle_s,
        namespaces=configuration.namespaces(config) if has_nacos else (),
        groups=tuple(dict.fromkeys((zone.namespace, zone.group) for zone in zones)) if has_nacos else (),
        bare=frozenset((zone.namespace, zone.group) for zone in zones if zone.bare_names),
        preload=frozenset(_preloaded(config, naming)) if has_nacos else frozenset(),
    )


def _preloaded(config: Config, naming: Names) -> list[ServiceKey]:
    targets = [naming.resolve(labels_of(text_name(name))) for name in config.nacos.preload]
    return [target.candidates[0].spellings[-1] for target in targets if isinstance(target, ServiceName)]


if __name__ == "__main__":
    child.main(KeeperProcess)
