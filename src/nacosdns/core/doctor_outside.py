"""What is wrong with those whom the bridge asks: Nacos, the services it names, the upstreams.

Must not know: where facts come from. Rules: what was asked from here just now says why the bridge has no connection; a
fault that follows from another one points to it, so that the first is mended first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.finding import error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nacosdns.core.facts import Facts, NacosServer, Setting, Upstreams
    from nacosdns.core.finding import Finding

_NAMED_MAX = 5


def judge(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """Every finding, the good ones too."""
    for check in (_nacos, _registry, _services, _forwarding):
        yield from check(facts, setting)


def some(words: Sequence[str], separator: str = ", ") -> str:
    """A few of them, and how many more there are."""
    more = f"{separator}and {len(words) - _NAMED_MAX} more" if len(words) > _NAMED_MAX else ""
    return separator.join(words[:_NAMED_MAX]) + more


def _registry(facts: Facts, setting: Setting) -> Iterator[Finding]:
    bridge = facts.bridge
    if bridge is None or bridge.error or not setting.nacos:
        return
    apart: dict[str, list[str]] = {}
    for space in bridge.namespaces:
        if space.connected:
            path = f"Nacos {space.version or space.generation} at {space.server} by gRPC"
            yield ok("nacos.connected", f"namespace {space.name}: {path}")
        else:
            apart.setdefault(space.error or "not connected yet", []).append(space.name)
    for why, names in apart.items():
        seen = f"{_counted(len(names), 'namespace')} not connected ({some(names)}): {why}"
        yield error("nacos.connected", seen, _reconnected(facts))
    if bridge.brake_s is not None:
        yield warning(
            "nacos.brake",
            f"for {bridge.brake_s:.0f} s Nacos has known much less than before: what vanished is still answered",
            "see that providers are back; if Nacos is right, accept it",
            f"nacosdns cache accept{setting.option}",
        )
    elif bridge.protected:
        known = facts.services.protected if facts.services else ()
        which = f": {some(known)}" if known else ""
        verb = "is" if bridge.protected == 1 else "are"
        yield warning(
            "nacos.protection",
            f"{_counted(bridge.protected, 'service')} {verb} answered otherwise than Nacos said last{which}",
            "see that their providers run and are registered; where Nacos is right, let the name go: "
            f"nacosdns cache flush NAME{setting.option}",
            f"nacosdns services{setting.option}",
        )


def _reconnected(facts: Facts) -> str:
    """What makes a connection come back, by what the servers say that were asked from here."""
    nacos = facts.nacos
    again = "the bridge tries again by itself"
    if nacos is None:
        return f"see that Nacos runs and that nacos.servers is right; {again}"
    bad = [server for server in nacos.servers if server.http_error or server.grpc_error or server.http_port]
    if nacos.servers and len(bad) == len(nacos.servers):
        return f"mend what is said of {some([server.name for server in bad])}; {again}"
    if nacos.login_error:
        return f"mend what is said of nacos.login; {again}"
    return f"Nacos answers from here: see that the namespace exists there and that our user may read it; {again}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _services(facts: Facts, setting: Setting) -> Iterator[Finding]:
    rows = facts.services.unnameable if facts.services else ()
    if rows:
        names = some([f"{service}: {why}" for service, why in rows], "; ")
        todo = "; ".join(dict.fromkeys(_nameable(why) for _, why in rows))
        yield warning("services.unnameable", f"no DNS name leads to {_counted(len(rows), 'service')} ({names})", todo)
    if facts.services and facts.services.clashing:
        clashing = facts.services.clashing
        seen = f"{_counted(len(clashing), 'name')} {'means' if len(clashing) == 1 else 'mean'} several services: {some(clashing, '; ')}"
        todo = (
            "give each a name of its own: until then the spelling of the question chooses, else the first by code point"
        )
        yield warning("services.clashing", seen, todo)
    if facts.services and facts.services.seen < facts.services.total:
        seen = f"{facts.services.seen} of {facts.services.total} services were looked at; `nacosdns services --all` shows all"
        yield ok("services.many", seen)
    file = facts.static_file
    if file is not None and file.error:
        todo = "correct it: the bridge has its last good content, and none after a start"
        yield error("static.file", f"static_file is refused: {file.error}", todo, f"nacosdns check{setting.option}")
    elif file is not None:
        yield ok("static.file", f"static_file {file.path} is good")


_NAMEABLE = (
    ("namespace ", "give that namespace a zone, or an alias in [namespaces]"),
    ("it reads as a name with a prefix", "register it under a name whose parts are no prefix of ours"),
    ("its name would have over", "register it under a shorter name, or take the alias or zone away that hides it"),
    ("its service or group is empty", "register it with a service and a group"),
    ("it holds half a character", "register it under a name of whole characters"),
)
"""What to do about each reason why no name leads to a service (core/naming.py)."""


def _nameable(why: str) -> str:
    long = "register it under a name whose parts have at most 63 bytes"
    return next((todo for start, todo in _NAMEABLE if why.startswith(start)), long)


def _nacos(facts: Facts, setting: Setting) -> Iterator[Finding]:
    if facts.nacos is None or not setting.nacos:
        return
    for server in facts.nacos.servers:
        yield _server(server)
    match facts.nacos.login_error, facts.nacos.login_fault:
        case None, _:
            pass
        case "", _:
            yield ok("nacos.login", "the user of nacos.username can log in")
        case str(why), "refused":
            yield error("nacos.login", why, "correct nacos.username and the content of nacos.password_file")
        case str(why), "path":
            todo = (
                "write the path that this Nacos is served under into nacos.context_path; see that the port is Nacos's"
            )
            yield error("nacos.login", why, todo)
        case why, _:
            todo = "mend what nacos.reachable says: whether user and password are right is not known until then"
            yield warning("nacos.login", f"no login could be tried: {why}", todo)


def _server(server: NacosServer) -> Finding:
    name = server.name
    if server.http_port:
        seen = f"{name} is the gRPC port of a Nacos; nacos.servers names HTTP ports"
        host = name.rpartition(":")[0]
        return error("nacos.reachable", seen, f"write {host}:{server.http_port}: gRPC is found 1000 above by itself")
    if server.version.startswith(("0.", "1.")):
        seen = f"{name} is Nacos {server.version}, which has no gRPC"
        return error("nacos.generation", seen, "upgrade it to 2.0 or later")
    if server.http_error and server.grpc_error:
        return error("nacos.reachable", f"{name} {server.http_error}", "see that it runs and that its name is right")
    if server.grpc_error:
        seen = f"{name} answers by HTTP, but not by gRPC 1000 ports above: {server.grpc_error}"
        return error("nacos.grpc", seen, "open that port between this host and Nacos")
    if server.http_error:
        seen = f"{name} answers by gRPC, but not by HTTP: {server.http_error}"
        return warning("nacos.http", seen, "a login and the version need HTTP; open the port")
    return ok("nacos.reachable", f"{name}: Nacos {server.version or '(version not told)'}, HTTP and gRPC answer")


def _forwarding(facts: Facts, setting: Setting) -> Iterator[Finding]:
    bridge = facts.bridge
    if bridge is not None and not bridge.error:
        loops = [one.address for one in bridge.upstreams if one.health == "loop"]
        if loops:
            seen = f"{', '.join(loops)} asks us back: a loop; it is not asked any more"
            yield error("forward.loop", seen, "let it forward elsewhere, or take it out of forward.upstreams")
        down = [f"{one.address} ({one.error or one.health})" for one in bridge.upstreams if one.health == "down"]
        if down and len(down) == len(bridge.upstreams):
            yield error(
                "forward.upstreams", f"no upstream answers: {', '.join(down)}", "see the network and the resolvers"
            )
            return
        if down:
            yield warning("forward.upstreams", f"does not answer: {', '.join(down)}", "see that resolver, or remove it")
            yield from _ourselves(facts, setting)
            return
    yield from _ourselves(facts, setting)
    yield from _upstreams(facts, setting)


def _ourselves(facts: Facts, setting: Setting) -> Iterator[Finding]:
    left_out = facts.bridge.left_out if facts.bridge else ()
    found = {address: None for address, _ in left_out if address in setting.upstreams}
    found |= dict.fromkeys(facts.upstreams.looping if facts.upstreams else ())
    if found:
        seen = f"forward.upstreams names ourselves ({', '.join(found)}): a loop, so it is not asked"
        yield error("forward.loop", seen, "write the resolvers of this site there in its place")


_ANSWERED = {"NOERROR", "NXDOMAIN", "SERVFAIL"}
"""A resolver of a site without the Internet says SERVFAIL of the root and still knows the names of the site."""


def _asked(upstreams: Upstreams) -> Iterator[Finding]:
    """What the upstreams said to us just now."""
    bad = [f"{server} ({said})" for server, said in upstreams.asked.items() if said not in _ANSWERED]
    if bad and len(bad) == len(upstreams.asked):
        yield error("forward.upstreams", f"no upstream answers: {', '.join(bad)}", "see the network and the resolvers")
    elif bad:
        yield warning("forward.upstreams", f"does not answer: {', '.join(bad)}", "see that resolver, or remove it")


def _upstreams(facts: Facts, setting: Setting) -> Iterator[Finding]:
    looping = facts.upstreams.looping if facts.upstreams else ()
    named = [entry for entry in setting.upstreams if entry != "resolv.conf" and entry not in looping]
    asked = tuple(_asked(facts.upstreams)) if facts.upstreams else ()
    if asked:
        yield from asked
    elif not setting.upstreams:
        yield ok("forward.upstreams", "no upstream is wanted: outside names are SERVFAIL")
    elif facts.upstreams is None or (facts.upstreams.servers or named):
        said = facts.upstreams.asked if facts.upstreams else {}
        servers = [*named, *(facts.upstreams.servers if facts.upstreams else ())]
        servers = [f"{server} (says {said[server]})" if server in said else server for server in servers]
        where = f", from {facts.upstreams.path}" if facts.upstreams and facts.upstreams.servers else ""
        yield ok("forward.upstreams", f"outside names go to {', '.join(servers) or 'resolv.conf'}{where}")
    elif looping:
        return
    elif facts.upstreams.ourselves:
        seen = f"{facts.upstreams.path} names only ourselves: outside names are SERVFAIL"
        yield error("forward.upstreams", seen, "write the resolvers of this site into forward.upstreams")
    else:
        seen = "no file names an upstream: outside names are SERVFAIL"
        yield error("forward.upstreams", seen, "write the resolvers of this site into forward.upstreams")
