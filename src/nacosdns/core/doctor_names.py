"""What is wrong with the way from a program of this host to us: resolv.conf, nsswitch.conf, systemd-resolved, the guard.

Must not know: where facts come from. Rule: judged as glibc reads: three servers, the first that answers at all is
believed, and an NXDOMAIN is final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.finding import error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nacosdns.core.facts import Facts, ResolvFile, Setting
    from nacosdns.core.finding import Finding

SERVERS_READ = 3  # resolv.conf(5), MAXNS
SEARCHED_MAX = 3
TIMEOUT_S = 5  # glibc's own
NDOTS = 1
STUB = ("127.0.0.53", "127.0.0.54")
LIBC_SERVER = "127.0.0.1"  # resolv.conf(5): asked where the file names none
DOCKER_DNS = "127.0.0.11"
FOUGHT_RECENTLY_S = 900.0


def judge(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """Every finding, the good ones too."""
    resolv = facts.resolv
    if resolv is None:
        yield from _names_service(facts, setting)
        return
    if not setting.own:
        yield warning(
            "resolv.port",
            "no address of server.listen is on port 53, and a resolv.conf cannot name a port",
            'add "127.0.0.1:53" to server.listen',
        )
    yield from _file(resolv)
    for check in _CHECKS:
        yield from check(facts, resolv, setting)
    yield from _names_service(facts, setting)


def _guard_command(facts: Facts, setting: Setting) -> str:
    return "" if _guarded(facts) else f"nacosdns resolvconf guard{setting.option}"


def _guarded(facts: Facts) -> bool:
    return facts.guard is not None and facts.guard.runs


def _keep(facts: Facts) -> str:
    if not _guarded(facts):
        return "have the guard keep it"
    return f"let the guard that runs put it right{' (see guard.fight)' if _fights(facts) else ''}"


def _fights(facts: Facts) -> bool:
    fought_s = facts.guard.fought_s if facts.guard else None
    return fought_s is not None and fought_s < FOUGHT_RECENTLY_S


def _file(resolv: ResolvFile) -> Iterator[Finding]:
    match resolv.kind:
        case "missing":
            seen = f"{resolv.path} does not exist: libc asks 127.0.0.1"
            yield warning("resolv.file", seen, "write it", fix="resolv.conf")
        case "unreadable":
            yield error("resolv.file", f"{resolv.path} cannot be read: {'; '.join(resolv.warnings)}", "mend its rights")
        case _ if not resolv.servers:
            seen = f"{resolv.path} names no server: libc asks 127.0.0.1"
            yield warning("resolv.file", seen, "write our address into it", fix="resolv.conf")
        case _:
            yield ok("resolv.file", f"{resolv.path} names {', '.join(resolv.servers)}")
    if resolv.kind != "unreadable":
        for line in resolv.warnings:
            yield warning("resolv.syntax", f"{resolv.path} {line}: libc skips it", "correct the line")


def _ours(facts: Facts, resolv: ResolvFile, setting: Setting) -> Iterator[Finding]:
    """Whether the first server that programs ask knows our zones."""
    servers, own = resolv.servers or (LIBC_SERVER,), setting.own
    if servers[0] == own:
        yield ok("resolv.ours", f"programs of this host ask us first, at {own}")
    elif facts.answers.get(servers[0]) == "zone":
        yield ok("resolv.ours", f"programs of this host ask {servers[0]} first, which knows {setting.zones[0]}")
    elif not setting.agent:
        yield ok("resolv.ours", "this node answers others; the programs of this host itself do not ask it")
    elif own:
        behind = f"{own} stands behind {servers[0]}" if own in servers else f"{own} is not in {resolv.path}"
        seen = f"{behind}: programs of this host do not find {setting.zones[0]}"
        command = "" if _contained(facts) else _guard_command(facts, setting)
        yield error("resolv.ours", seen, _advice(facts, resolv), command, fix="resolv.conf")
    if own in servers[SERVERS_READ:]:
        yield error("resolv.ours", f"{own} is after the third server, where libc does not look", "put it first")


def _contained(facts: Facts) -> str:
    """Which container the bridge is outside of; "" where it runs here, or this is none: there the guard helps."""
    runs = facts.bridge is not None and not facts.bridge.error
    return facts.system.container if facts.system and not runs else ""


def _advice(facts: Facts, resolv: ResolvFile) -> str:
    """How the address comes in and stays there, by who makes the file."""
    container = _contained(facts)
    if container in {"docker", "podman"}:
        return f"start the container with --dns ADDRESS, an address where the bridge listens for {container}"
    if container == "kubernetes":
        return "give the pod dnsConfig, or give the cluster's DNS a stub domain for our zone"
    if _guarded(facts):
        return _keep(facts)
    advice = {
        "systemd-resolved": "have the guard keep it, or tell systemd-resolved: DNS=127.0.0.1 and Domains=~ZONE in resolved.conf",
        "NetworkManager": "have the guard keep it, or set dns=none in NetworkManager.conf and write the file yourself",
    }
    return advice.get(resolv.maker, "put it first, and have the guard keep it there")


def _fallback(facts: Facts, resolv: ResolvFile, setting: Setting) -> Iterator[Finding]:
    """Servers behind the first: what they say of our zone is what programs hear when we are not there."""
    for server in resolv.servers[1:SERVERS_READ]:
        if server == setting.own:
            continue
        match facts.answers.get(server, ""):
            case "":
                pass
            case "zone":
                yield ok("resolv.fallback", f"{server} behind us knows {setting.zones[0]}")
            case "silent":
                yield warning(
                    "resolv.fallback", f"{server} does not answer", f"take it out, or {_keep(facts)}", fix="resolv.conf"
                )
            case said:
                seen = f"{server} does not know {setting.zones[0]} and says {said}"
                final = ", which ends the search of a program" if said == "NXDOMAIN" else ""
                todo = f"put a cluster node there (host.nodes), or nothing, and {_keep(facts)}"
                command = _guard_command(facts, setting)
                yield error("resolv.fallback", seen + final, todo, command, fix="resolv.conf" if setting.agent else "")
    if len(resolv.servers) > SERVERS_READ:
        seen = f"{len(resolv.servers)} servers, of which libc asks the first three"
        yield warning("resolv.servers", seen, "take the others out")


def _makers(facts: Facts, resolv: ResolvFile, setting: Setting) -> Iterator[Finding]:
    """Who writes the file anew."""
    if resolv.kind == "link" and resolv.servers[:1] and resolv.servers[0] in STUB:
        seen = f"{resolv.path} is a link to {resolv.target}: programs ask the stub of systemd-resolved, not us"
        yield warning("resolv.stub", seen, _advice(facts, resolv), _guard_command(facts, setting), fix="resolv.conf")
    elif resolv.maker and not resolv.ours and not _guarded(facts):
        seen = f"{resolv.path} is written by {resolv.maker}, which will write it again"
        yield warning("resolv.maker", seen, _advice(facts, resolv), _guard_command(facts, setting))
    if resolv.immutable:
        seen = f"{resolv.path} is immutable (chattr +i): nobody can put it right"
        yield warning("resolv.immutable", seen, f"take the flag away and {_keep(facts)}", f"chattr -i {resolv.path}")


def _options(facts: Facts, resolv: ResolvFile, setting: Setting) -> Iterator[Finding]:
    options = dict(option.partition(":")[::2] for option in resolv.options)
    several = len(resolv.servers[:SERVERS_READ]) > 1
    before = len(list(resolv.options))
    ndots, timeout_s = _number(options.get("ndots"), NDOTS), _number(options.get("timeout"), TIMEOUT_S)
    wrong = False
    if ndots > NDOTS and resolv.search:
        seen = f"ndots:{ndots}: a name with fewer dots is first asked with each of {len(resolv.search)} suffixes"
        yield warning("resolv.ndots", seen, "set ndots:1, or write names with a dot at the end")
        wrong = True
    if "rotate" in options and several:
        seen = "rotate: each of the servers is asked first in turn, so we are passed over"
        yield warning(
            "resolv.rotate", seen, f"take it out, or {_keep(facts)}", fix="resolv.conf" if setting.agent else ""
        )
        wrong = True
    if timeout_s > 2 and several and resolv.servers[0] == setting.own:
        seen = f"a server that is dead costs each query {timeout_s} s"
        yield warning("resolv.timeout", seen, 'write "options timeout:1 attempts:2"', fix="resolv.conf")
        wrong = True
    if len(resolv.search) > SEARCHED_MAX:
        seen = f"{len(resolv.search)} search suffixes: a name that does not exist is asked that often"
        yield warning("resolv.search", seen, "keep the suffixes that are used")
        wrong = True
    if not wrong:
        yield ok("resolv.options", "its options are good" if before else "it has no options that harm")


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else default


def _guard(facts: Facts, resolv: ResolvFile, setting: Setting) -> Iterator[Finding]:
    guard = facts.guard
    if guard is None:
        return
    if guard.fought_s is not None and _fights(facts):
        seen = f"{guard.fought_s:.0f} s ago the guard gave {resolv.path} up for a while: another program writes it again and again"
        yield error("guard.fight", seen, *_fighters(facts, resolv))
    if guard.runs:
        yield ok("guard.runs", "the guard runs")
    elif setting.guard:
        seen = "host.guard is true, but no guard runs"
        yield error(
            "guard.runs", seen, "start the bridge, or the unit nacosdns-guard", "systemctl start nacosdns-guard"
        )
    elif guard.has_copy:
        seen = f"no guard runs, and {resolv.path} is as it left it"
        command = f"nacosdns resolvconf restore{setting.option}"
        yield warning("guard.runs", seen, "start it again, or give the file back", command)


def _fighters(facts: Facts, resolv: ResolvFile) -> tuple[str, str]:
    """Who may have written it, by what stands in it and what runs here; else how the kernel tells, as todo and command."""
    running = ", ".join(f"{name} (pid {pid})" for name, pid in facts.writers)
    said = f"the file says {resolv.maker}; " if resolv.maker and not resolv.ours else ""
    if running:
        return f"{said}running here and known to write it: {running}: let it name us, or leave the file alone", ""
    if said:
        return f"{said}let it name us, or leave the file alone", ""
    todo = "no program known for it runs now: have the kernel note who writes (then: ausearch -f resolv.conf)"
    return todo, f"auditctl -w {resolv.path} -p wa"


def _container(facts: Facts, resolv: ResolvFile, setting: Setting) -> Iterator[Finding]:
    container = facts.system.container if facts.system else ""
    if not container:
        return
    first = resolv.servers[0] if resolv.servers else LIBC_SERVER
    good = first == setting.own or facts.answers.get(first) == "zone"
    if good:
        yield ok("host.container", f"this is a container ({container}), and its first server knows our zone")
    elif DOCKER_DNS in resolv.servers:
        seen = "this is a container on a network of its own: Docker's DNS at 127.0.0.11 asks the host's servers, not us"
        yield error("host.container", seen, 'give it --dns ADDRESS, or "dns" in /etc/docker/daemon.json')
    elif container in {"docker", "podman"} and not any(server.startswith("127.") for server in resolv.servers):
        seen = f"this is a container: {container} writes other servers in place of 127.0.0.1, so our names are missing"
        yield error("host.container", seen, f"listen on the bridge of {container} and give the container --dns ADDRESS")
    elif container == "kubernetes":
        seen = "this is a pod: its names go to the cluster's DNS"
        yield error("host.container", seen, "give the cluster's DNS a stub domain for our zone, or the pod dnsConfig")
    else:
        seen = f"this is a container ({container}): 127.0.0.1 is its own, not the host's"
        yield error("host.container", seen, "run the bridge beside it in its network, or name an address of the host")


_CHECKS: tuple[Callable[[Facts, ResolvFile, Setting], Iterator[Finding]], ...] = (
    *(_ours, _fallback, _makers),
    *(_options, _guard, _container),
)


def _names_service(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """nsswitch.conf: whether libc comes to DNS at all, and which form of a name works here."""
    if facts.nss is None:
        return
    words = facts.nss.hosts or ("dns", "[!UNAVAIL=return]", "files")  # glibc without a line
    if "dns" not in words and "resolve" not in words:
        yield error(
            "nss.hosts", f"hosts: {' '.join(words)}: no dns, so nothing is asked", "add dns to /etc/nsswitch.conf"
        )
        return
    yield from _mdns(words, setting)
    if _resolved_first(words, facts):
        seen = "systemd-resolved is asked before resolv.conf (nsswitch: resolve)"
        if setting.bare_names:
            seen += "; it keeps single-label names, so these will not reach the agent"
        yield error(
            "nss.resolve",
            f"{seen}; dotted names reach it only when resolved is told to ask us",
            "take resolve out of the hosts line, or DNS=127.0.0.1 and Domains=~ZONE in resolved.conf (dotted names only)",
            "sed -i '/^hosts:/s/ resolve \\[!UNAVAIL=return\\]//' /etc/nsswitch.conf",
        )
        return
    forms = f"names as SERVICE.{setting.zones[0]}"
    bare = " and single-label names" if setting.bare_names else ""
    yield ok("nss.hosts", f"hosts: {' '.join(words)}: {forms}{bare} reach the servers of resolv.conf")


def _mdns(words: tuple[str, ...], setting: Setting) -> Iterator[Finding]:
    local = [zone for zone in setting.zones if zone.rstrip(".").rpartition(".")[2] == "local"]
    asked = [word for word in words if word.startswith("mdns")]
    if local and asked and "dns" in words and words.index(asked[0]) < words.index("dns"):
        seen = f"{asked[0]} takes every name under .local, {local[0]} too, before DNS is asked"
        yield error("nss.mdns", seen, "take another zone than .local (RFC 6762 keeps it), or take mdns out of the line")


def _resolved_first(words: tuple[str, ...], facts: Facts) -> bool:
    """Whether ``resolve`` stands before ``dns`` and systemd-resolved is there to answer."""
    if "resolve" not in words or ("dns" in words and words.index("dns") < words.index("resolve")):
        return False
    stub = facts.resolv is not None and bool(set(facts.resolv.servers) & set(STUB))
    return stub or (facts.system is not None and facts.system.resolved) or "dns" not in words
