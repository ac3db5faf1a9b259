"""What is wrong with a host, from facts: the bridge, its neighbours and its machine.

Names are core/doctor_names.py, Nacos and upstreams core/doctor_outside.py, the disk core/doctor_disk.py.

Must not know: where facts come from. Rules: every finding says what was seen and, when it is not good, what to do; a
fact that could not be learned is a warning, never silence; the same facts give the same findings in the same order.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

from nacosdns.core import access, doctor_disk, doctor_names, doctor_outside, doctor_running
from nacosdns.core.doctor_outside import some
from nacosdns.core.finding import Severity, error, ok, warning
from nacosdns.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from ipaddress import IPv4Address, IPv6Address

    from nacosdns.core.facts import Bridge, Facts, Holder, Jvm, Setting
    from nacosdns.core.finding import Finding

CANARY_OLD_S = 3.0
BUFFER_MS_MIN = 200
QUERY_BUFFER_BYTES = 416
"""What one waiting query takes of a receive buffer (edge/sockets.py)."""
_QUERIES_PER_MS = 10
_DNS_PORT = 53
_WEB = "the web"
_SYSTEMD_PID = 1
_JAVA_TTL_MAX_S = 10
REFUSED_WITHIN_S = 600.0


def judge(facts: Facts, setting: Setting) -> tuple[Finding, ...]:
    """Every finding, the good ones too, grouped by what they are about."""
    found = [*doctor_names.judge(facts, setting)]
    for check in _CHECKS:
        found += check(facts, setting)
    unknown = [
        warning("unknown", f"{what} could not be looked at: {why}", "see whether a disk or a server hangs")
        for what, why in sorted(facts.unknown.items())
        if what != "bridge" and not (what == "nacos" and setting.endpoint)
    ]
    return (*found, *unknown)


def is_wrong(findings: tuple[Finding, ...]) -> bool:
    """Whether anything is to be done."""
    return any(finding.severity is not Severity.OK for finding in findings)


# The bridge


def _config(facts: Facts, setting: Setting) -> Iterator[Finding]:
    if facts.config_error:
        seen = f"the file is refused, the next start fails: {facts.config_error}"
        todo = "correct it; what is said here is of the configuration that the bridge has"
        yield error("config.file", seen, todo, f"nacosdns check{setting.option}")


def _bridge(facts: Facts, setting: Setting) -> Iterator[Finding]:
    bridge = facts.bridge
    if bridge is None:
        if "bridge" in facts.unknown:
            seen = f"the supervisor does not answer: {facts.unknown['bridge']}"
            yield error("bridge.running", seen, "start it again", _systemctl(facts, "restart"))
        return
    if bridge.denied:
        yield warning("bridge.running", bridge.error, "run doctor as root")
        return
    if bridge.foreign:
        yield error("bridge.running", bridge.error, "run the doctor of that release, or restart the bridge")
        return
    if bridge.error:
        yield _down(facts, setting, bridge)
        return
    yield ok("bridge.running", f"runs as pid {bridge.pid}")
    if bridge.covered:
        seen = "; ".join(("no front answers: clients get SERVFAIL", *bridge.ends))
        todo = "mend what the last ones say, or see child.exited in its log"
        yield error("bridge.front", seen, "see limits.files" if doctor_running.lacks_files(bridge) else todo)
    elif bridge.canary_age_s is None or bridge.canary_age_s > CANARY_OLD_S:
        age = "never" if bridge.canary_age_s is None else f"{bridge.canary_age_s:.0f} s ago"
        todo = (
            "see bridge.listen" if bridge.missing else "see FAILURES in `nacosdns status`, and child.exited in its log"
        )
        yield error("bridge.canary", f"its own test query was last answered {age}", todo)
    else:
        yield ok("bridge.canary", "its own test query is answered through the real socket")
    yield from _missing(bridge)
    yield from _refused(bridge, setting)
    yield from _parts(bridge)
    yield from _web(facts, bridge)


def _down(facts: Facts, setting: Setting, bridge: Bridge) -> Finding:
    if bridge.silent:
        todo = "look at that process and its log; start it again when it stays so"
        return error("bridge.running", bridge.error, todo, _systemctl(facts, "restart"))
    if held := "; ".join(_held(facts, setting)):
        return error("bridge.running", held, "stop it, or set server.listen to another address")
    todo = f"start it; `journalctl -u nacosdns` or `nacosdns run{setting.option}` says why when it ends at once"
    return error("bridge.running", bridge.error, todo, _systemctl(facts, "start"))


def _parts(bridge: Bridge) -> Iterator[Finding]:
    short = "see limits.files" if doctor_running.lacks_files(bridge) else ""
    for name, pid in bridge.stopped:
        if name != _WEB:
            todo = "let it go on: a signal (SIGSTOP) or a debugger stopped it"
            yield error("bridge.parts", f"{name} is stopped, pid {pid}", todo, f"kill -CONT {pid}")
    for end in () if bridge.covered else bridge.ends:
        todo = "mend what it says; it is started again by itself"
        yield warning("bridge.parts", f"it fails: {end}", short or todo)
    for part in bridge.passing:
        todo = "ask again; see its log when that lasts longer than half a minute"
        yield warning("bridge.parts", part, short or todo)
    for part in bridge.failed:
        yield error("bridge.parts", part, short or "see its log; a part that died is started again by itself")


def _missing(bridge: Bridge) -> Iterator[Finding]:
    if not bridge.missing:
        return
    seen = f"waits for {', '.join(bridge.missing)}, which this host does not have"
    six = [entry for entry in bridge.missing if entry.startswith("[::1]")]
    if six:
        todo = f'IPv6 is off here: take "{six[0]}" out of server.listen'
    elif all(_address(host) for host in _hosts(bridge.missing)):
        todo = "give this host that address again, or correct server.listen"
    else:
        todo = "bring that interface up, with an address, or correct server.listen"
    yield warning("bridge.listen", seen, todo)


def _refused(bridge: Bridge, setting: Setting) -> Iterator[Finding]:
    """What was to change while it runs, and did not."""
    if bridge.reload_refused:
        when = "" if bridge.reload_s is None else f" {bridge.reload_s:.0f} s ago"
        seen = f"a configuration was refused{when}, the one before is used: {bridge.reload_refused}"
        todo = "correct it and send SIGHUP: with this one the next start fails"
        yield error("bridge.reload", seen, todo, f"nacosdns check{setting.option}")
    if bridge.upgrade_failed:
        seen = f"the last upgrade failed, the release before runs on: {bridge.upgrade_failed}"
        todo = "mend the installed release and upgrade again; a start from it may fail too"
        yield error("bridge.upgrade", seen, todo, f"nacosdns upgrade{setting.option}")


def _web(facts: Facts, bridge: Bridge) -> Iterator[Finding]:
    if bridge.web_phase in {"", "ready"} and not bridge.web_fault:
        return
    ours = {bridge.pid, *bridge.children}
    others = sorted({_who(holder) for holder in facts.web_holders if holder.pid not in ours or not holder.pid})
    hangs = bridge.web_phase == "hangs"
    why = bridge.web_fault or ("it hangs" if hangs else f"it is {bridge.web_phase}")
    todo, command = "free its address, or see child.exited in its log", ""
    if hangs:
        todo = "it is replaced when it hangs for 10 s"
    if pid := dict(bridge.stopped).get(_WEB):
        why, todo, command = f"it is stopped, pid {pid}", "let it go on, or wait: it is replaced", f"kill -CONT {pid}"
    elif doctor_running.lacks_files(bridge):
        todo = "see limits.files"
    if others:
        why = f"its port is held by {', '.join(others)}"
        todo = "stop that program, or name another port in web.listen"
    yield warning("bridge.web", f"no metrics and no health check: {why}", todo, command)


def _systemctl(facts: Facts, word: str) -> str:
    return f"systemctl {word} nacosdns" if facts.system and facts.system.systemd else ""


# Neighbours


def _ports(facts: Facts, setting: Setting) -> Iterator[Finding]:
    if facts.holders is None:
        return
    wanted = {entry.rpartition(":")[0].strip("[]") for entry in setting.listen if entry.endswith(":53")}
    others = [holder for holder in _others(facts) if holder.port == _DNS_PORT]
    taken = sorted({_who(holder) for holder in others if _collide(holder.address, wanted)})
    running = facts.bridge is not None and (facts.bridge.denied or not facts.bridge.error)
    if not wanted:
        return
    if taken and not running:
        seen = f"port 53 is held by {', '.join(taken)}"
        yield error("port.53", seen, "stop it, or set server.listen to another address")
    elif others:
        yield ok(
            "port.53", f"others are on port 53 of other addresses: {', '.join(sorted({_who(one) for one in others}))}"
        )
    else:
        yield ok("port.53", "port 53 is ours" if running else "port 53 is free")


def _others(facts: Facts) -> list[Holder]:
    """Who is on a port of server.listen, or 53, beside us."""
    ours = {facts.bridge.pid, *facts.bridge.children} if facts.bridge else set()
    if facts.system and facts.system.unit:
        ours |= {_SYSTEMD_PID}  # it holds them for our socket unit
    return [holder for holder in facts.holders or () if holder.pid not in ours or not holder.pid]


def _held(facts: Facts, setting: Setting) -> Iterator[str]:
    """The entries of server.listen that somebody else has, and who."""
    others = [(holder.address, str(holder.port), _program(holder)) for holder in _others(facts)]
    for entry in setting.listen:
        host, _, port = entry.rpartition(":")
        wanted = {host.strip("[]")}
        who = sorted({name for address, at, name in others if at == port and _collide(address, wanted)})
        if who:
            yield f"{entry} is held by {', '.join(who)}"


def _collide(address: str, wanted: set[str]) -> bool:
    return address in wanted or (address in {"0.0.0.0", "::"} and bool(wanted)) or bool(wanted & {"0.0.0.0", "::"})  # noqa: S104  # an address that is compared


def _who(holder: Holder) -> str:
    return f"{_program(holder)} on {holder.address}"


def _program(holder: Holder) -> str:
    return f"{holder.name} (pid {holder.pid})" if holder.pid else "a process that cannot be seen"


def _java(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """One finding of each kind, however many there are."""
    del setting
    late: dict[str, list[str]] = {}
    soon: dict[str, list[str]] = {}
    for jvm in facts.jvms or ():
        brief = jvm.ttl_s is not None and 0 <= jvm.ttl_s <= _JAVA_TTL_MAX_S
        (soon if brief else late).setdefault(_kept(jvm), []).append(str(jvm.pid))
    if late:
        seen = "; ".join(f"java (pid {some(pids)}) keeps every address {kept}" for kept, pids in late.items())
        todo = "start it with -Dsun.net.inetaddr.ttl=1, or set networkaddress.cache.ttl=1 in its java.security"
        yield warning("java.ttl", f"changes reach programs late: {seen}", todo)
    if soon:
        seen = "; ".join(f"java (pid {some(pids)}) keeps addresses {kept}" for kept, pids in soon.items())
        yield ok("java.ttl", seen)


def _kept(jvm: Jvm) -> str:
    if jvm.ttl_s is None:
        kept = "for ever (it has a security manager)" if jvm.security_manager else "30 s"
    else:
        kept = f"{'for ever' if jvm.ttl_s < 0 else f'{jvm.ttl_s} s'} ({jvm.source})"
    return kept + (", and networkaddress.cache.ttl as a -D option has no effect" if jvm.mistaken else "")


def _nscd(facts: Facts, setting: Setting) -> Iterator[Finding]:
    del setting
    for nscd in facts.nscd or ():
        if nscd.caches_hosts:
            yield warning(
                "nscd.running",
                f"nscd (pid {nscd.pid}) keeps host names for up to {nscd.ttl_s} s: changes reach programs late",
                'write "enable-cache hosts no" into /etc/nscd.conf and start it again',
                "systemctl restart nscd",
            )
        else:
            yield ok("nscd.running", "nscd runs, but does not keep host names")


# The machine


def _secret(facts: Facts, setting: Setting) -> Iterator[Finding]:
    secret = facts.secret
    if secret is None:
        return
    command = f"chmod o-rwx {secret.path}"
    if secret.error:
        yield error("secret.file", f"nacos.password_file: {secret.error}", "write the password into it, one line")
    if secret.mode & 0o004:
        yield warning(
            "secret.file", f"everybody can read {secret.path}", "close it", command, fix=f"secret:{secret.path}"
        )
    elif not secret.error:
        yield ok("secret.file", f"only its owner and group can read {secret.path}")
    del setting


def _machine(facts: Facts, setting: Setting) -> Iterator[Finding]:
    system = facts.system
    if system is None:
        return
    if system.clock_synchronised is False:
        seen = "the clock is not synchronised: tokens, ages in the log and accept_before may be wrong"
        yield warning("clock.sync", seen, "run an NTP client", "timedatectl set-ntp true")
    elif system.clock_synchronised:
        yield ok("clock.sync", "the clock is synchronised")
    if system.leftovers:
        names = ", ".join(system.leftovers)
        yield warning("guard.leftover", f"a guard that was killed left {names}", "remove it", fix="leftovers")
    del setting
    if not system.systemd or system.container:
        return
    if not system.unit:
        yield warning("systemd.unit", "no unit starts the bridge after a reboot", "install deploy/systemd")
    elif not system.enabled:
        yield warning(
            "systemd.unit", f"{system.unit} is not enabled", "enable it", f"systemctl enable --now {system.unit}"
        )
    else:
        yield ok("systemd.unit", f"{system.unit} is enabled")


def _limits(facts: Facts, setting: Setting) -> Iterator[Finding]:
    del setting
    bridge = facts.bridge
    if bridge is None or bridge.error:
        return
    if bridge.buffer_bytes:
        covers_ms = bridge.buffer_bytes // QUERY_BUFFER_BYTES // _QUERIES_PER_MS
        seen = f"receive buffers hold {covers_ms} ms of 10,000 queries a second"
        if covers_ms < BUFFER_MS_MIN:
            todo = "allow larger ones and start the bridge again, or give it CAP_NET_ADMIN"
            yield warning("sockets.buffer", seen, todo, "sysctl -w net.core.rmem_max=8388608")
        else:
            yield ok("sockets.buffer", seen)


def _access(facts: Facts, setting: Setting) -> Iterator[Finding]:
    wide = access.open_entries(setting.allow)
    hosts = _hosts(setting.listen)
    if all(_is_loopback(host) for host in hosts):
        yield ok("access.open", "only this host can ask")
        return
    public = facts.system.public_addresses if facts.system else ()
    reached = [address for address in public if address in hosts or {"0.0.0.0", "::"} & set(hosts)]  # noqa: S104  # compared
    todo = "name your networks in server.allow; an open resolver is used to attack others"
    if wide and reached:
        yield error("access.open", f"everybody may ask ({', '.join(wide)}), at {', '.join(reached)} too", todo)
    elif wide:
        yield warning("access.open", f"everybody may ask ({', '.join(wide)})", todo)
    else:
        yield ok("access.open", f"may ask: {', '.join(setting.allow)}")


def _hosts(entries: Iterable[str]) -> list[str]:
    """The addresses and interfaces of entries as in server.listen, without port and brackets."""
    return [entry.rpartition(":")[0].strip("[]") for entry in entries]


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """None for an interface."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    found = _address(host)
    return found is not None and found.is_loopback


def _own_access(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """Whether the programs of this host itself may ask: they come from the address that they ask."""
    hosts = ["127.0.0.1" if host == "lo" else host for host in _hosts(setting.listen)]
    if "link" in setting.allow or all(map(_is_loopback, hosts)):
        return  # every address of ours is in a subnet of ours; nobody is refused where nobody else comes in
    if facts.resolv and setting.own in facts.resolv.servers:
        hosts.append(setting.own)
    asked = {host: found for host in hosts if (found := _address(host)) and not found.is_unspecified}
    allowed = access.Access(setting.allow)
    shut = [host for host, found in asked.items() if not allowed.contains(found.packed)]
    if shut:
        names = ['"loopback"' if _is_loopback(host) else f'"{host}"' for host in shut]
        seen = f"programs of this host that ask {', '.join(shut)} get REFUSED: it is not in server.allow"
        yield warning("access.own", seen, f"add {', '.join(dict.fromkeys(names))} to server.allow")


def _refused_clients(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """Strangers are refused all the time; a neighbour who is, is likely one who should not be."""
    del setting
    refused = facts.bridge.refused if facts.bridge else None
    if refused is None or refused.ago_s > REFUSED_WITHIN_S:
        return
    seen = f"{counted(refused.clients, 'client')} outside server.allow got REFUSED, the last one {refused.last}, {refused.ago_s:.0f} s ago"
    if access.is_near(refused.last):
        yield warning("access.refused", seen, "add its network to server.allow, if it is yours")
    else:
        yield ok("access.refused", seen)


_CHECKS: tuple[Callable[[Facts, Setting], Iterator[Finding]], ...] = (
    *(_config, _bridge, doctor_disk.store, doctor_running.judge, doctor_outside.judge, _ports, _nscd, _java),
    *(doctor_disk.judge, _secret, _machine, _limits, _access, _own_access, _refused_clients),
)
