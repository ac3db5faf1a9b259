"""What is wrong with those whom the bridge asks: Nacos, the services it names, the upstreams.

Must not know: where facts come from. Rules: what was asked from here just now says why the bridge has no connection; a
fault that follows from another one points to it, so that the first is mended first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.finding import error, ok, warning
from nacosdns.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nacosdns.core.facts import Bridge, Facts, NacosServer, Namespace, Setting, Upstreams
    from nacosdns.core.finding import Finding

_NAMED_MAX = 5
_YOUNG_S = 180.0
SLOW_S = 0.5
_SLOW_TODO = "see the way to it and its load: names that are not known yet are answered late, or not in time"


def judge(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """Every finding, the good ones too."""
    for check in (_endpoint, _nacos, _registry, _services, _forwarding, _flapping):
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
        if space.refused or (space.connected and space.error):
            continue  # said by nacos.login
        if space.connected and space.took_s > SLOW_S and not _is_slow(facts):
            seen = f"namespace {space.name}: {space.server} took {space.took_s:.1f} s for its last answer to the bridge"
            yield warning("nacos.slow", seen, _SLOW_TODO)
        elif space.connected:
            path = f"Nacos {space.version or space.generation} at {space.server} by gRPC"
            yield ok("nacos.connected", f"namespace {space.name}: {path}")
        else:
            apart.setdefault(space.error or "not connected yet", []).append(space.name)
    yield from _refused(bridge)
    yield from _listed(bridge)
    for why, names in apart.items():
        seen = f"{counted(len(names), 'namespace')} not connected ({some(names)}): {why}"
        yield error("nacos.connected", seen, _reconnected(facts, setting))
    if bridge.brake_s is not None:
        yield warning(
            "nacos.brake",
            f"for {bridge.brake_s:.0f} s Nacos has known much less than before: what vanished is still answered"
            f"{_braked(bridge)}{_anew(bridge)}",
            "see that providers are back; if Nacos is right, accept it",
            f"nacosdns cache accept{setting.option}",
        )
    elif bridge.protected:
        known = facts.services.protected if facts.services else ()
        which = f": {some(known)}" if known else ""
        verb = "is" if bridge.protected == 1 else "are"
        yield warning(
            "nacos.protection",
            f"{counted(bridge.protected, 'service')} {verb} answered otherwise than Nacos said last{which}{_anew(bridge)}",
            "see that their providers run, are registered and are not disabled in the console (Nacos leaves disabled "
            "instances out: all disabled is an empty list); where Nacos is right, let the name go: "
            f"nacosdns cache flush NAME{setting.option}",
            f"nacosdns services{setting.option}",
        )


def _is_slow(facts: Facts) -> bool:
    return any(server.took_s > SLOW_S for server in (facts.nacos.servers if facts.nacos else ()))


def _braked(bridge: Bridge) -> str:
    brake = bridge.brake
    if brake is None:
        return ""
    return f" ({counted(brake.kept, 'instance')}; {brake.services} of {brake.known} services lost most of theirs)"


def _anew(bridge: Bridge) -> str:
    """That a connection is young: providers come back to a Nacos that was started anew within a minute or so."""
    ages = [space.since_s for space in bridge.namespaces if space.connected and space.since_s is not None]
    return f"; connected to Nacos {min(ages):.0f} s ago" if ages and min(ages) < _YOUNG_S else ""


def _refused(bridge: Bridge) -> Iterator[Finding]:
    """Namespaces whose connection holds while Nacos tells us nothing on it."""
    why: dict[str, list[Namespace]] = {}
    for space in bridge.namespaces:
        if space.connected and (said := space.refused or space.error):
            why.setdefault(said, []).append(space)
    for said, spaces in why.items():
        names = some([space.name for space in spaces])
        if not spaces[0].refused:
            todo = "mend that: until then nothing new is learned, and what is known stays as it is"
            yield error("nacos.login", f"Nacos tells nothing of namespace {names}: {said}", todo)
        elif "no nacos.username" in said:
            todo = "write a user that may read it into nacos.username, and its password into nacos.password_file"
            yield error("nacos.login", f"Nacos refuses namespace {names}: {said}", todo)
        else:
            todo = f"see that the user of nacos.username exists, and give it the right to read namespace {names}"
            yield error("nacos.login", f"Nacos refuses namespace {names}: {said}", todo)


def _listed(bridge: Bridge) -> Iterator[Finding]:
    """Namespaces and groups without any service: most likely another one was meant."""
    for space in bridge.namespaces:
        groups = [one for one in bridge.catalogues if one.namespace == space.name]
        if not space.connected or space.refused or not groups:
            continue
        if not any(one.listed for one in groups):
            strange = sum(one.strangers for one in groups)
            known = f", not one of the {strange} that we know from before" if strange else ""
            seen = (
                f"namespace {space.name} holds no service at all in group {some([one.group for one in groups])}{known}"
            )
            todo = f"see that its id (not its name) is right, the group too, and that {space.server} is the Nacos that is meant"
            yield warning("nacos.namespace", f"{seen}{_anew(bridge)}", todo)
            continue
        for one in groups:
            where = f"group {one.group} of namespace {one.namespace}"
            if one.strangers:
                seen = f"{where} holds none of the {counted(one.strangers, 'service')} that we know from before"
                todo = f"see that {space.server} is the Nacos that is meant, and that providers of this group run"
                yield warning("nacos.namespace", f"{seen}{_anew(bridge)}", todo)
            elif not one.listed:
                todo = "see that the group is spelled as in Nacos, with its capitals"
                yield warning("nacos.namespace", f"{where} holds no service at all{_anew(bridge)}", todo)


def _reconnected(facts: Facts, setting: Setting) -> str:
    """What makes a connection come back, by what the servers say that were asked from here."""
    nacos = facts.nacos
    again = "the bridge tries again by itself"
    if nacos is None and setting.endpoint:
        return f"mend what is said of nacos.endpoint; {again}"
    if nacos is None:
        return f"see that Nacos runs and that nacos.servers is right; {again}"
    bad = [server for server in nacos.servers if server.http_error or server.grpc_error or server.http_port]
    if nacos.servers and len(bad) == len(nacos.servers):
        return f"mend what is said of {some([server.name for server in bad])}; {again}"
    if nacos.login_error:
        return f"mend what is said of nacos.login; {again}"
    if _is_slow(facts):
        return f"mend what nacos.slow says: a connection must be made within 3 s; {again}"
    return f"Nacos answers from here: see that the namespace exists there and that our user may read it; {again}"


def _unhealthy(bridge: Bridge | None) -> Iterator[Finding]:
    if bridge is not None and bridge.unhealthy:
        named: dict[str, list[str]] = {}
        for name, answered in bridge.unhealthy_named:
            named.setdefault(answered, []).append(name)
        said = "; ".join(f"{', '.join(names)} ({answered})" for answered, names in named.items())
        seen = f"{counted(bridge.unhealthy, 'service')} without a healthy instance: {said}"
        more = bridge.unhealthy - sum(map(len, named.values()))
        todo = "see their health checks and providers; policy.none_healthy says what is answered until then"
        yield warning("services.unhealthy", seen + (f"; and {more} more" if more > 0 else ""), todo)


def _services(facts: Facts, setting: Setting) -> Iterator[Finding]:
    yield from _unhealthy(facts.bridge)
    rows = facts.services.unnameable if facts.services else ()
    if rows:
        names = some([f"{service}: {why}" for service, why in rows], "; ")
        todo = "; ".join(dict.fromkeys(_nameable(why) for _, why in rows))
        yield warning("services.unnameable", f"no DNS name leads to {counted(len(rows), 'service')} ({names})", todo)
    if facts.services and facts.services.clashing:
        clashing = facts.services.clashing
        seen = f"{counted(len(clashing), 'name')} {'means' if len(clashing) == 1 else 'mean'} several services: {some(clashing, '; ')}"
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


def _endpoint(facts: Facts, setting: Setting) -> Iterator[Finding]:
    if setting.endpoint and "nacos" in facts.unknown:
        seen = f"the address server {setting.endpoint} did not tell which servers of Nacos there are: {facts.unknown['nacos']}"
        todo = "see that it runs and that nacos.endpoint is right, or name the servers in nacos.servers"
        yield error("nacos.endpoint", seen, todo)


def _nacos(facts: Facts, setting: Setting) -> Iterator[Finding]:
    if facts.nacos is None or not setting.nacos:
        return
    for server in facts.nacos.servers:
        yield _server(server)
    match facts.nacos.login_error, facts.nacos.login_fault:
        case None, _:
            pass
        case "", _ if facts.bridge and any(space.refused for space in facts.bridge.namespaces):
            pass  # it can log in, and what it is refused is said elsewhere
        case "", _:
            yield ok("nacos.login", "the user of nacos.username can log in")
        case str(why), "refused":
            yield error("nacos.login", why, "correct nacos.username and the content of nacos.password_file")
        case str(why), "password":
            todo = "mend what secret.file says: whether Nacos takes user and password is not known until then"
            yield warning("nacos.login", f"no login was tried: {why}", todo)
        case str(why), "path":
            todo = (
                "write the path that this Nacos is served under into nacos.context_path; see that the port is Nacos's"
            )
            yield error("nacos.login", why, todo)
        case why, _:
            todo = "mend what nacos.reachable or nacos.slow says: whether user and password are right is not known until then"
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
    late = server.grpc_error or server.http_error
    if server.took_s > SLOW_S and (server.late or not late):
        how = f" by {'HTTP' if server.grpc_error else 'gRPC'}, and {late}" if late else ""
        return warning("nacos.slow", f"{name} took {server.took_s:.1f} s to answer{how}", _SLOW_TODO)
    if server.grpc_error:
        seen = f"{name} answers by HTTP, but not by gRPC 1000 ports above: {server.grpc_error}"
        return error("nacos.grpc", seen, "open that port between this host and Nacos")
    if server.http_error:
        seen = f"{name} answers by gRPC, but not by HTTP: {server.http_error}"
        return warning("nacos.http", seen, "a login and the version need HTTP; open the port")
    took = f" in {server.took_s * 1000:.0f} ms" if server.took_s else ""
    return ok("nacos.reachable", f"{name}: Nacos {server.version or '(version not told)'}, HTTP and gRPC answer{took}")


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
        if bridge.failing:
            yield from _ourselves(facts, setting)
            yield _failing(bridge)
            return
        if bridge.failed_last:
            todo = "ask each upstream for that name (dig NAME @UPSTREAM): those names, or the way to their servers, are broken"
            yield warning("forward.names", bridge.failed_last, todo)
    yield from _ourselves(facts, setting)
    yield from _upstreams(facts, setting)


def _flapping(facts: Facts, setting: Setting) -> Iterator[Finding]:
    del setting
    for said in facts.bridge.flaps if facts.bridge else ():
        todo = "see the way to it and its load (ping, its log), or take it out of forward.upstreams"
        yield warning("forward.flaps", said, todo)


def _failing(bridge: Bridge) -> Finding:
    said = ", ".join(f"{address} {did}" for address, did in bridge.failing.items())
    if all(did == "said REFUSED" for did in bridge.failing.values()):
        return error("forward.upstreams", f"every upstream refuses us: {said}", _ACCESS)
    seen = f"every outside name that was asked lately failed: {said}"
    return error("forward.upstreams", seen, "see those resolvers and their log: they answer, but with a failure")


def _ourselves(facts: Facts, setting: Setting) -> Iterator[Finding]:
    left_out = facts.bridge.left_out if facts.bridge else ()
    found = {address: None for address, _ in left_out if address in setting.upstreams}
    found |= dict.fromkeys(facts.upstreams.looping if facts.upstreams else ())
    if found:
        seen = f"forward.upstreams names ourselves ({', '.join(found)}): a loop, so it is not asked"
        yield error("forward.loop", seen, "write the resolvers of this site there in its place")


_ACCESS = "see its access list: this host may not ask it (allow-query, allow-recursion, access-control)"
_ANSWERED = {"NOERROR", "NXDOMAIN", "SERVFAIL"}
"""A resolver of a site without the Internet says SERVFAIL of the root and still knows the names of the site."""


def _asked(upstreams: Upstreams) -> Iterator[Finding]:
    """What the upstreams said to us just now."""
    bad = [f"{server} ({said})" for server, said in upstreams.asked.items() if said not in _ANSWERED]
    refused = [f"{server} (REFUSED)" for server, said in upstreams.asked.items() if said == "REFUSED"]
    if refused and len(bad) == len(refused):
        all_of_them = len(refused) == len(upstreams.asked)
        seen = f"{'every upstream ' if all_of_them else ''}refuses us: {', '.join(refused)}"
        yield (error if all_of_them else warning)("forward.upstreams", seen, _ACCESS)
    elif bad and len(bad) == len(upstreams.asked):
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
