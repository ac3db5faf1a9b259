"""Where the Nacos servers are when their names would be asked of ourselves: upstreams, or what was true last.

Must not know: Nacos, how a name is asked (edge/hostnames.py). Rules: where libc does not lead to us, libc is asked; else
never through us; whatever was found is kept on disk and is good enough when nobody answers.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.resolvers import ours, parse_endpoint
from nacosdns.edge import host, hostnames, resolvconf, sockets
from nacosdns.edge.aside import aside
from nacosdns.errors import RegistryDown, UpstreamError

if TYPE_CHECKING:
    from nacosdns.config import Config
    from nacosdns.core.resolvers import Ours
    from nacosdns.ports import Log

FILE = "nacos-hosts.json"
FRESH_S = 10.0
LIBC_S = 5.0
_FILE_BYTES_MAX = 1 << 16
_Kept = dict[str, tuple[str, ...]]


class Locator:
    """The addresses of host names, IPv4 before IPv6. ``keep`` is whether what is found may be written to disk."""

    def __init__(self, config: Config, log: Log, *, keep: bool = True) -> None:
        self._config = config
        self._log = log
        self._keep = keep
        self._path = Path(config.cache.dir) / FILE
        self._known: _Kept = _read(self._path)
        self._found_at: dict[str, float] = {}
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Locator {dict(self._known)}>"

    async def addresses(self, name: str) -> tuple[str, ...]:
        """The addresses of a host. RegistryDown when nobody tells and nothing is remembered."""
        if hostnames.is_address(name):
            return (name,)
        async with self._turn:
            if time.monotonic() - self._found_at.get(name, -FRESH_S) < FRESH_S:
                return self._known[name]
            try:
                found = await self._look_up(name)
            except (UpstreamError, OSError, TimeoutError) as error:
                return self._remembered(name, str(error) or "no answer in time")
            return self._learn(name, found)

    async def _look_up(self, name: str) -> tuple[str, ...]:
        if found := hostnames.in_hosts_file(name):
            return found
        mine = ourselves(self._config)
        etc = resolvconf.read(self._config.host.resolv_conf)
        if etc.nameservers and not any(leads_to(server, mine) for server in etc.nameservers):
            return await _by_libc(name)
        resolvers = [(one.host, one.port) for one in self._upstreams(mine)]
        found = await hostnames.ask(name, resolvers, etc.search)
        if not found:
            raise UpstreamError("the resolvers say that there is no such name")
        return found

    def _upstreams(self, mine: Ours) -> list[sockets.Endpoint]:
        wanted: list[str] = []
        for entry in self._config.forward.upstreams:
            if entry == "resolv.conf":
                paths = resolvconf.candidates(self._config.cache.dir, self._config.forward.resolv_conf)
                wanted += resolvconf.choose(paths, lambda server: leads_to(server, mine)).nameservers
            else:
                wanted.append(entry)
        endpoints = [parse_endpoint(entry) for entry in dict.fromkeys(wanted)]
        return [sockets.Endpoint(one.host, one.port) for one in endpoints if one not in mine]

    def _remembered(self, name: str, reason: str) -> tuple[str, ...]:
        kept = self._known.get(name)
        if not kept:
            raise RegistryDown(f"the name {name} cannot be found: {reason}")
        self._log.warning("registry.name_remembered", name=name, addresses=",".join(kept), reason=reason)
        self._found_at[name] = time.monotonic()
        return kept

    def _learn(self, name: str, found: tuple[str, ...]) -> tuple[str, ...]:
        self._found_at[name] = time.monotonic()
        if self._known.get(name) != found:
            self._known[name] = found
            self._log.info("registry.name_found", name=name, addresses=",".join(found))
            if self._keep:
                self._write()
        return found

    def _write(self) -> None:
        temporary = self._path.with_name(f"{FILE}.new")
        try:
            temporary.write_bytes(msgspec.json.encode(self._known))
            temporary.replace(self._path)
        except OSError as error:
            self._log.warning("registry.names_not_kept", reason=error.strerror or str(error))


def _read(path: Path) -> _Kept:
    """What was written; nothing when there is none that can be read."""
    try:
        with path.open("rb") as file:
            kept = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return {}
    return {name: tuple(filter(hostnames.is_address, addresses)) for name, addresses in kept.items()}


async def _by_libc(name: str) -> tuple[str, ...]:
    """As libc finds it, in its own order of families but IPv4 first."""
    async with asyncio.timeout(LIBC_S):
        found = await aside(lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return tuple(sorted(addresses, key=lambda address: ":" in address))


def ourselves(config: Config) -> Ours:
    """Every address that means ourselves, as a front sees it when it looks for upstreams."""
    listening, _ = sockets.endpoints(config.server.listen, host.addresses())
    return ours([str(endpoint) for endpoint in listening], resolvconf.local_addresses())


def leads_to(server: str, mine: Ours) -> bool:
    """Whether a server of a resolv.conf is one of these."""
    try:
        return parse_endpoint(server) in mine
    except UpstreamError:
        return False
