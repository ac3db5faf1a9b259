"""`nacosdns register`: from the words of the command line to instances that are held in the registry.

Must not know: how Nacos is spoken to (edge/registrar.py does). Rule: a wrong word is a ConfigError that names the
option; told to stop, it takes the instances away and ends well.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from typing import TYPE_CHECKING, NamedTuple

from nacosdns import config as configuration
from nacosdns.core.model import Instance, ServiceKey
from nacosdns.edge import logs, nacos_http, registrar
from nacosdns.errors import ConfigError
from nacosdns.locating import Locator

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from nacosdns.config import Config
    from nacosdns.edge.registrar import Probe


WEIGHT_MAX = 10_000.0
"""The largest weight that Nacos takes."""


class Wish(NamedTuple):
    """What is to be registered; ``probe`` None registers it whatever it does."""

    service: ServiceKey
    instances: tuple[Instance, ...]
    probe: Probe | None


def wish(arguments: Namespace, config: Config) -> Wish:
    """The meaning of the command line. ConfigError names the option that is wrong."""
    if not arguments.name.strip():
        raise ConfigError("the service has no name", key="NAME", remedy="say nacosdns register NAME …")
    if not 0.0 <= arguments.weight <= WEIGHT_MAX:
        raise ConfigError(f"{arguments.weight:g} is no weight", key="--weight", remedy=f"say 0 to {WEIGHT_MAX:g}")
    metadata = tuple(sorted(_pair(text) for text in arguments.meta))
    places = [_place(text) for text in arguments.instance] + _given_apart(arguments.ip, arguments.port)
    if not places:
        raise ConfigError(
            "no instance", key="--ip", remedy="say --ip 10.0.0.1 --port 3306, or --instance 10.0.0.1:3306"
        )
    instances = tuple(
        Instance(
            host, port, arguments.weight if weight is None else weight, cluster=arguments.cluster, metadata=metadata
        )
        for host, port, weight in dict.fromkeys(places)
    )
    namespace = configuration.namespace_id(config, arguments.namespace)
    group = config.groups.get(arguments.group, arguments.group)
    return Wish(ServiceKey(namespace, group, arguments.name), instances, _probe(arguments.probe))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f'"{text}" has no key and value', key="--meta", remedy='write it as "zone=a"')
    return key, value


def _place(text: str) -> tuple[str, int, float | None]:
    place, _, weight = text.partition("@")
    remedy = 'write it as "10.0.0.1:3306", "[2001:db8::1]:3306" or "10.0.0.1:3306@2.5"'
    try:
        host, port = configuration.host_port(place)
        return _address(host), port, _weight(weight) if weight else None
    except ValueError as error:
        raise ConfigError(f'"{text}": {error}', key="--instance", remedy=remedy) from error


def _weight(text: str) -> float:
    """A weight as Nacos takes it: 0 to 10,000."""
    weight = float(text)
    if not 0.0 <= weight <= WEIGHT_MAX:
        raise ValueError(f"a weight is 0 to {WEIGHT_MAX:g}")
    return weight


def _address(host: str) -> str:
    return str(ipaddress.ip_address(host))


def _given_apart(hosts: list[str], ports: list[int]) -> list[tuple[str, int, float | None]]:
    """``--ip`` and ``--port`` by their places; one port may stand for all addresses."""
    if len(ports) == 1:
        ports *= len(hosts)
    if len(hosts) != len(ports):
        raise ConfigError(
            f"{len(hosts)} addresses and {len(ports)} ports",
            key="--port",
            remedy="say one --port for each --ip, or one for all",
        )
    for port in ports:
        if not 0 < port < 65536:
            raise ConfigError(f"{port} is not a port", key="--port", remedy="a port is 1 to 65535")
    try:
        return [(_address(host), port, None) for host, port in zip(hosts, ports, strict=True)]
    except ValueError as error:
        raise ConfigError(str(error), key="--ip", remedy="write an IP address") from error


def _probe(text: str | None) -> Probe | None:
    kind, _, path = (text or "").partition(":")
    match kind:
        case "":
            return None
        case "tcp" if not path:
            return registrar.tcp_probe()
        case "http" if not path or path.startswith("/"):
            return registrar.http_probe(path or "/")
        case _:
            raise ConfigError(f'"{text}" is not known', key="--probe", remedy='write "tcp", "http" or "http:/health"')


async def hold(wanted: Wish, config: Config, read_password: Callable[[], str]) -> int:
    """Registers until SIGTERM or SIGINT, then takes away what was registered; the exit code.

    RegistryError when the registry refuses from the start; while it cannot be reached it is tried again.
    """
    if not config.nacos.servers and not config.nacos.endpoint:
        raise ConfigError("is empty", key="nacos.servers", remedy="name the Nacos to register in")
    locator = Locator(config, logs.log(), keep=False)
    settings = nacos_http.settings_of(config.nacos, read_password(), read_password, locator.addresses)
    holder = registrar.Registrar(settings, wanted.service, wanted.instances, logs.log(), probe=wanted.probe)
    task = asyncio.current_task()
    assert task is not None  # a coroutine that runs is some task's
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await holder.run()
    except asyncio.CancelledError:
        return 0
    return 1
