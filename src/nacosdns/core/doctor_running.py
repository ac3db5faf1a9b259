"""What the processes of the running bridge have run out of, and a clock that was set back under them.

Must not know: where facts come from. Rule: what is short is named with the process that lacks it; what this host does not
allow is never said of those whom the bridge asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.finding import error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nacosdns.core.facts import Bridge, Facts, OpenFiles, Setting
    from nacosdns.core.finding import Finding

FILES_BESIDE_TCP = 256  # upstreams, links, listening sockets, database
_NEARLY = 0.9
_FILES_OUT = "open files"
_TODO = (
    (_FILES_OUT, "see limits.files; of the whole host fs.file-max is the bound (sysctl fs.file-nr)"),
    ("not permitted", "let the bridge through the firewall of this host (nft list ruleset, iptables -S OUTPUT)"),
    ("denied", "see the routes of this host (ip route: prohibit) and its security modules"),
    ("uffer", "see the memory of this host, and its queues (tc -s qdisc)"),
    ("memory", "see the memory of this host and of the bridge's control group"),
    ("unavailable", "see its free ports (sysctl net.ipv4.ip_local_port_range) and the send buffers"),
)
"""What to do about what a host does not allow, by the words of the kernel."""


def judge(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """Every finding, the good ones too."""
    bridge = facts.bridge
    if bridge is not None and not bridge.error:
        yield from _files(bridge, setting)
        yield from _hindered(bridge)
        if bridge.address_space:
            seen = f"each process may map {bridge.address_space >> 20} MiB only (ulimit -v): it hangs or dies when that is used up"
            yield warning(
                "limits.memory", seen, "take that limit off; MemoryMax in its unit counts what is really used"
            )
    if facts.services is not None and facts.services.future:
        count, ahead_s = facts.services.future, facts.services.future_s
        seen = (
            f"{count} {'service was' if count == 1 else 'services were'} confirmed up to {ahead_s:.0f} s in the future"
        )
        todo = (
            "the clock was set back: put it right and run an NTP client; ages shown as clock? mean nothing until then"
        )
        yield warning("bridge.clock", seen, todo, "timedatectl status")


def lacks_files(bridge: Bridge) -> bool:
    """Whether something fails because no file more can be opened: what takes several at once fails before the last is used."""
    return bool(_full(bridge)) or any(_FILES_OUT in end for end in bridge.ends)


def _full(bridge: Bridge) -> list[OpenFiles]:
    return [one for one in bridge.files if one.limit and one.used >= one.limit]


def _files(bridge: Bridge, setting: Setting) -> Iterator[Finding]:
    needed = setting.tcp_connections + FILES_BESIDE_TCP
    limited = [one for one in bridge.files if one.limit]
    nearly = [one for one in limited if one.limit > one.used >= _NEARLY * one.limit]
    if out := _full(bridge):
        seen = "; ".join(f"{one.name} has used all {one.limit} files" for one in out)
        todo = f"set LimitNOFILE={needed * 2} in its unit, or ulimit -n, and see who holds so many connections"
        yield error("limits.files", seen, todo, f"prlimit --pid {out[0].pid} --nofile={needed * 2}")
    elif nearly:
        seen = "; ".join(f"{one.name} has used {one.used} of {one.limit} files" for one in nearly)
        grade = error if lacks_files(bridge) else warning
        yield grade("limits.files", seen, f"set LimitNOFILE={needed * 2} in its unit, or ulimit -n")
    elif short := [one for one in limited if one.serves and one.limit < needed]:
        seen = f"{short[0].name} may open {short[0].limit} files, {needed} may be needed (server.tcp_connections)"
        yield warning("limits.files", seen, f"set LimitNOFILE={needed * 2} in its unit, or ulimit -n")
    elif limited:
        least = min(limited, key=lambda one: one.limit)
        yield ok("limits.files", f"{least.limit} open files are allowed")


def _hindered(bridge: Bridge) -> Iterator[Finding]:
    out = {one.name for one in _full(bridge)}
    for name, reason in bridge.hindered:
        if name not in out:
            todo = next((todo for words, todo in _TODO if words in reason), "see what keeps it from that, and its log")
            yield error("bridge.hindered", f"this host did not let {name} work within the last 10 s: {reason}", todo)
