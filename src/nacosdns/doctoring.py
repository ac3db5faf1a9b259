"""`nacosdns doctor`: asks everything at once, each with a time of its own, and does what may be done by itself.

Must not know: what is right or wrong (core/doctor.py), where a fact lies (edge/). Rules: all of it takes ``TOTAL_S`` at
most, whatever hangs; what hangs is named; a fix is done only where it can be undone, and said.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nacosdns import bridge_facts, guarding, locating
from nacosdns.config import host_port
from nacosdns.config_load import load_static
from nacosdns.core import resolvtext
from nacosdns.core.facts import (
    Facts,
    Guard,
    Nacos,
    NacosServer,
    ResolvFile,
    Setting,
    StaticFile,
    Upstreams,
)
from nacosdns.core.resolvers import parse_endpoint
from nacosdns.edge import (
    canary,
    host,
    hostfacts,
    hostnames,
    hostprobes,
    logs,
    nacos_http,
    resolvconf,
    resolvfile,
    rights,
)
from nacosdns.edge.aside import aside
from nacosdns.errors import ConfigError, HostError, NacosdnsError, RegistryElsewhere, RegistryRefused, StartError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from nacosdns.config import Config
    from nacosdns.core.facts import Holder, Secret, System
    from nacosdns.core.finding import Finding
    from nacosdns.edge.hostfacts import Tree

TOTAL_S = 5.0
PROBE_S = 2.5
NACOS_S = 4.0
"""Two round trips to it fit in when each takes almost two seconds."""
NAME_S = 1.4
SERVERS_ASKED = 3
SAID_MAX = 200
_Fact = TypeVar("_Fact")


def setting(config: Config, config_path: str = "") -> Setting:
    """What a host with this configuration is judged by."""
    hosts = [entry.rpartition(":")[0].strip("[]") for entry in config.server.listen]
    zones = tuple(zone.name if zone.name.endswith(".") else f"{zone.name}." for zone in config.zones)
    return Setting(
        own=guarding.own_address(config),
        agent=any(_is_loopback(name) for name in hosts),
        listen=config.server.listen,
        allow=config.server.allow,
        zones=zones,
        bare_names=any(zone.bare_names for zone in config.zones),
        nacos=bool(config.nacos.servers or config.nacos.endpoint),
        upstreams=config.forward.upstreams,
        guard=config.host.guard,
        fronts=config.server.fronts,
        tcp_connections=config.server.tcp_connections,
        config_path=config_path,
        endpoint=config.nacos.endpoint,
    )


def _is_loopback(name: str) -> bool:
    return name == "lo" or (hostnames.is_address(name) and ipaddress.ip_address(name.partition("%")[0]).is_loopback)


async def examine(config: Config, password: str, tree: Tree, control: Path) -> Facts:
    """All facts of a host; within ``TOTAL_S``. ``control`` is where a running bridge is asked."""
    unknown: dict[str, str] = {}

    async def known(name: str, learning: Awaitable[_Fact], within_s: float = PROBE_S) -> _Fact | None:
        try:
            async with asyncio.timeout(within_s):
                return await learning
        except TimeoutError:
            unknown[name] = f"no answer within {within_s:g} s"
        except (OSError, NacosdnsError) as error:
            unknown[name] = str(error)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # a file or answer of another shape
            unknown[name] = f"it cannot be read ({type(error).__name__}: {error})"
        return None

    path = config.host.resolv_conf
    async with asyncio.TaskGroup() as group:
        start = group.create_task
        resolv = start(known("resolv.conf", aside(lambda: _resolv(tree, path))))
        guard = start(known("guard", aside(lambda: _guard(tree, config))))
        upstreams = start(known("upstreams", _asked_upstreams(tree, config)))
        nss = start(known("nsswitch.conf", aside(lambda: hostfacts.nss(tree))))
        holders = start(known("port 53", aside(lambda: _holders(tree, config))))
        nscd = start(known("nscd", aside(lambda: hostfacts.nscds(tree))))
        jvms = start(known("java", aside(lambda: hostfacts.jvms(tree))))
        system = start(known("system", aside(lambda: _system(tree))))
        disk = start(known("cache.dir", aside(lambda: hostfacts.disk(tree, config.cache.dir, _user(config)))))
        secret = start(known("password", aside(lambda: _secret(tree, config))))
        nacos = start(known("nacos", _nacos(config, password), NACOS_S))
        bridge = start(known("bridge", aside(lambda: bridge_facts.look(tree, control))))
        services = start(known("services", aside(lambda: bridge_facts.services(control))))
        static_file = start(known("static_file", aside(lambda: _static_file(tree, config))))
        web_holders = start(known("the port of web.listen", aside(lambda: _web_holders(tree, config))))
        writers = start(known("writers of resolv.conf", aside(lambda: hostfacts.writers(tree))))
        answers = start(_answers(await resolv, config))
    found = holders.result()
    return Facts(
        resolv=resolv.result(),
        guard=guard.result(),
        upstreams=upstreams.result(),
        answers=answers.result(),
        nss=nss.result(),
        holders=found,
        nscd=nscd.result(),
        jvms=jvms.result(),
        system=_with_stub(system.result(), stub=hostfacts.stub_listens(found or ())),
        disk=disk.result(),
        secret=secret.result(),
        nacos=nacos.result(),
        bridge=bridge.result(),
        services=services.result(),
        static_file=static_file.result(),
        web_holders=web_holders.result() or (),
        writers=writers.result() or (),
        unknown=unknown,
    )


def _with_stub(system: System | None, *, stub: bool) -> System | None:
    return msgspec.structs.replace(system, stub_listens=stub, resolved=system.resolved or stub) if system else None


# Files


def _resolv(tree: Tree, path: str) -> ResolvFile:
    target = tree.link(path)
    real = tree.path(path)
    parsed = resolvconf.read(str(real))
    exists = tree.exists(path)
    unreadable = exists and parsed.path == str(real) and bool(parsed.warnings) and not hostfacts.is_readable(real)
    return ResolvFile(
        path=path,
        kind="unreadable" if unreadable else "link" if target else "file" if exists else "missing",
        target=target,
        servers=parsed.nameservers,
        search=parsed.search,
        options=parsed.options,
        warnings=parsed.warnings,
        maker=hostfacts.maker(tree, path),
        immutable=resolvfile.is_immutable(real),
        ours=hostfacts.is_ours(tree, path),
    )


def _guard(tree: Tree, config: Config) -> Guard:
    copy = tree.path(f"{config.cache.dir}/{resolvconf.SAVED_NAME}")
    saved = resolvtext.decode_saved(copy.read_bytes()) if copy.is_file() else None
    return Guard(
        runs=resolvfile.is_locked(tree.path(config.cache.dir)),
        has_copy=saved is not None,
        fought_s=max(0.0, time.time() - saved.fought_at) if saved and saved.fought_at else None,
    )


def loops(config: Config) -> tuple[str, ...]:
    """The entries of forward.upstreams that are ourselves."""
    mine = locating.ourselves(config)
    entries = (entry for entry in config.forward.upstreams if entry != "resolv.conf")
    return tuple(entry for entry in entries if locating.leads_to(entry, mine))


async def _asked_upstreams(tree: Tree, config: Config) -> Upstreams:
    """Each is asked once now: the running bridge notices a dead one only when somebody asks."""
    found = await aside(lambda: _upstreams(tree, config))
    others = dict.fromkeys([*(entry for entry in found.named if entry not in found.looping), *found.servers])
    targets = [parse_endpoint(server) for server in others]
    said = await asyncio.gather(*(hostprobes.root_verdict(one.host, one.port) for one in targets))
    return msgspec.structs.replace(found, asked=dict(zip(others, said, strict=True)))


def _upstreams(tree: Tree, config: Config) -> Upstreams:
    named = tuple(entry for entry in config.forward.upstreams if entry != "resolv.conf")
    if len(named) == len(config.forward.upstreams):
        return Upstreams(named=named, looping=loops(config))
    mine = locating.ourselves(config)
    paths = resolvconf.candidates(config.cache.dir, config.forward.resolv_conf)
    found = resolvconf.choose([str(tree.path(path)) for path in paths], lambda server: locating.leads_to(server, mine))
    own = tuple(server for server in found.nameservers if locating.leads_to(server, mine))
    others = tuple(server for server in found.nameservers if server not in own)
    return Upstreams(path=found.path, servers=others, ourselves=own, named=named, looping=loops(config))


def _system(tree: Tree) -> System:
    public = tuple(str(one.address) for one in host.addresses() if one.address.is_global)
    return msgspec.structs.replace(
        hostfacts.system(tree), clock_synchronised=hostprobes.clock_synchronised(), public_addresses=public
    )


def _static_file(tree: Tree, config: Config) -> StaticFile | None:
    """Read as `nacosdns check` reads it."""
    if not config.static_file:
        return None
    try:
        load_static(str(tree.path(config.static_file)))
    except ConfigError as error:
        return StaticFile(path=config.static_file, error=str(error))
    return StaticFile(path=config.static_file)


def _holders(tree: Tree, config: Config) -> tuple[Holder, ...]:
    """Who is on port 53, and on the other ports of server.listen."""
    ports = {53, *(host_port(entry)[1] for entry in config.server.listen)}
    return tuple(
        msgspec.structs.replace(holder, port=port) for port in sorted(ports) for holder in hostfacts.holders(tree, port)
    )


def _web_holders(tree: Tree, config: Config) -> tuple[Holder, ...]:
    """Who listens where the web part wants to."""
    if not config.web.listen:
        return ()
    _, port = host_port(config.web.listen)
    return tuple(holder for holder in hostfacts.holders(tree, port) if holder.kind == "tcp")


def _user(config: Config) -> hostfacts.User | None:
    """Whom the bridge writes as; None where that is us, or nobody yet."""
    try:
        found = rights.find_user(config.server.user)
    except StartError:
        return None
    return hostfacts.User(*found) if found else None


def _secret(tree: Tree, config: Config) -> Secret | None:
    return hostfacts.secret(tree, config.nacos.password_file) if config.nacos.password_file else None


# Who is asked


async def _answers(resolv: ResolvFile | None, config: Config) -> dict[str, str]:
    servers = resolv.servers[:SERVERS_ASKED] if resolv else ()
    zone = config.zones[0].name
    said = await asyncio.gather(*(hostprobes.zone_verdict(server, zone) for server in servers))
    return dict(zip(servers, said, strict=True))


async def _nacos(config: Config, password: str) -> Nacos | None:
    section = config.nacos
    if not section.servers and not section.endpoint:
        return None
    locator = locating.Locator(config, _Silent(), keep=False)
    settings = nacos_http.settings_of(section, password, locate=locator.addresses)
    web = nacos_http.Web(settings, Counter())
    ends_at = time.monotonic() + NACOS_S - 0.2
    async with asyncio.timeout(NACOS_S):
        await web.refresh()
        servers = asyncio.gather(*(_server(web, server, ends_at) for server in web.servers))
        is_dumb = bool(section.password_file) and not password  # it would be refused, and Nacos may count that
        login = asyncio.ensure_future(_login(settings, web, ends_at)) if section.username and not is_dumb else None
        asked = tuple(await servers)
        error, fault = await login if login else (None, "")
    if section.username and is_dumb:
        error, fault = f"no password can be read from {section.password_file}", "password"
    return Nacos(servers=asked, login_error=error, login_fault=fault)


async def _server(web: nacos_http.Web, server: nacos_http.Server, ends_at: float) -> NacosServer:
    try:
        async with asyncio.timeout(NAME_S):
            addresses = await web.addresses(server)
    except (NacosdnsError, TimeoutError) as error:
        lost = _brief(error) or f"the name {server.host} is not found within {NAME_S:g} s"
        return NacosServer(name=str(server), http_error=lost, grpc_error=lost)
    port = server.port + nacos_http.GRPC_PORT_ABOVE_HTTP
    timeout_s = round(ends_at - time.monotonic(), 1)
    probe = hostprobes.grpc_error(addresses[0], port, speaks_first=web.tls is None, timeout_s=timeout_s)
    (told, http_s), (grpc_error, grpc_s) = await asyncio.gather(
        _timed(_version(web, server, addresses, timeout_s)), _timed(probe)
    )
    version, http_error, http_port, first_s = told
    return NacosServer(
        name=str(server),
        version=version,
        http_error=http_error,
        grpc_error=grpc_error,
        http_port=http_port,
        took_s=first_s if grpc_error else grpc_s,
        late=max(http_s * bool(http_error), grpc_s * bool(grpc_error)) > timeout_s - 0.1,
    )


async def _timed(work: Awaitable[_Fact]) -> tuple[_Fact, float]:
    """What it gave, and how long that took."""
    began = time.monotonic()
    return await work, time.monotonic() - began


def _brief(error: Exception) -> str:
    """What somebody at a port said may be long."""
    text = str(error)
    return text if len(text) <= SAID_MAX else f"{text[:SAID_MAX]}…"


async def _version(
    web: nacos_http.Web, server: nacos_http.Server, addresses: tuple[str, ...], timeout_s: float
) -> tuple[str, str, int, float]:
    """The version that a server tells by HTTP, or why it does not answer; the port to name if this one is for gRPC.

    The last is how long its first answer took. One that is too slow to tell its version as well has answered.
    """
    url = f"{server.url}{web.context_path}/"
    began = time.monotonic()
    took_s = 0.0
    try:
        async with asyncio.timeout(timeout_s):
            await nacos_http.fetch(url, tls=web.tls, timeout_s=timeout_s, addresses=addresses)
            took_s = time.monotonic() - began
            return await web.version(server), "", 0, took_s
    except (NacosdnsError, TimeoutError) as error:
        if took_s:
            return "", "", 0, took_s
        said = _brief(error).removeprefix(f"{server} ") or f"does not answer by HTTP within {timeout_s:g} s"
    if web.tls is not None or time.monotonic() - began > timeout_s / 2:  # one that is silent has no time left
        return "", said, 0, 0.0
    other = await hostprobes.grpc_error(addresses[0], server.port, speaks_first=True, timeout_s=timeout_s / 2)
    return "", said, 0 if other else max(0, server.port - nacos_http.GRPC_PORT_ABOVE_HTTP), 0.0


async def _login(settings: nacos_http.Settings, web: nacos_http.Web, ends_at: float) -> tuple[str, str]:
    """Why a login failed, and which fault that is (core/facts.py, Nacos); both "" when it did not."""
    account = nacos_http.Account(settings, web, _Silent(), random.Random())  # noqa: S311  # spreads retries, of which there are none
    try:
        async with asyncio.timeout(ends_at - time.monotonic()):
            await account.token()
    except RegistryRefused as error:
        return _brief(error), "refused"
    except (NacosdnsError, TimeoutError) as error:
        is_elsewhere = isinstance(error.__cause__, RegistryElsewhere)
        return _brief(error) or "a login is not answered", "path" if is_elsewhere else "down"
    return "", ""


class _Silent:
    """A log of nothing: what happened stands in the findings."""

    def debug(self, event: str, **facts: object) -> None: ...

    info = warning = error = exception = debug


# Fixes


async def mend(findings: Iterable[Finding], config: Config) -> list[str]:
    """Does the safe fixes that findings name, each once; what was done or why not, in words."""
    done = []
    for fix in dict.fromkeys(finding.fix for finding in findings if finding.fix):
        what, _, argument = fix.partition(":")
        try:
            match what:
                case "resolv.conf":
                    done.append(await _put_right(config))
                case "secret":
                    hostprobes.close_to_others(argument)
                    done.append(f"{argument}: others cannot read it any more")
                case "leftovers":
                    done.append(_sweep(config))
                case _:
                    continue
        except (OSError, NacosdnsError) as error:
            done.append(f"not done: {error}")
    return done


async def _put_right(config: Config) -> str:
    """One look of the guard, if somebody would still answer outside names afterwards."""
    where = guarding.place(config)
    upstreams = _upstreams(hostfacts.Tree(), config)
    if not upstreams.servers and config.forward.upstreams == ("resolv.conf",):
        raise HostError(f"{where.path} is left as it is: no other server would be left for outside names")
    guard = guarding.Guard(config, logs.log(), canary.answered)
    try:
        did = await guard.look()
    finally:
        guard.close()
    if guard.writes:
        return f"{where.path}: {did}; `nacosdns resolvconf restore` undoes it"
    if did == "no answer":
        raise HostError(f"{where.path} is left as it is: we do not answer at {where.wish.servers[0]}")
    return f"{where.path}: {did or 'is right already'}"


def _sweep(config: Config) -> str:
    """Removes what a guard left that was killed between two steps, unless one works there now."""
    path = Path(config.host.resolv_conf).with_name(hostfacts.GUARD_LEFTOVER)
    held = resolvfile.lock(Path(config.cache.dir))
    try:
        path.unlink(missing_ok=True)
    finally:
        resolvfile.unlock(held)
    return f"{path} is removed"
