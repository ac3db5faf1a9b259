"""Asking a running bridge as clients do: dnspython over UDP and TCP, dig, glibc in a mount namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fakes.running import Bridge


def ask(
    port: int,
    name: str,
    kind: str = "A",
    *,
    tcp: bool = False,
    payload: int = 0,
    host: str = "127.0.0.1",
    seconds: float = 5.0,
) -> dns.message.Message:
    """One question by dnspython."""
    query = dns.message.make_query(name, kind)
    if payload:
        query.use_edns(0, payload=payload)
    send = dns.query.tcp if tcp else dns.query.udp
    return send(query, host, timeout=seconds, port=port, ignore_trailing=False)


def values(reply: dns.message.Message) -> list[str]:
    """The data of the answer section, in order."""
    return [rdata.to_text() for rrset in reply.answer for rdata in rrset]


def addresses(port: int, name: str, kind: str = "A", **how: object) -> list[str]:
    """The data of an answer; empty for NXDOMAIN, NODATA and SERVFAIL."""
    return values(ask(port, name, kind, **how))  # type: ignore[arg-type]


def rcode(port: int, name: str, kind: str = "A") -> str:
    """NOERROR, NXDOMAIN and so on."""
    return dns.rcode.to_text(ask(port, name, kind).rcode())


def until_says(port: int, name: str, wanted: set[str], *, kind: str = "A", seconds: float = 10.0) -> float:
    """Asks until the answer is this set; the seconds that it took."""
    began = time.monotonic()
    return until(
        lambda: set(addresses(port, name, kind)) == wanted,
        lambda: f"{name}: {addresses(port, name, kind)}",
        began,
        seconds,
    )


def until(condition: Callable[[], bool], seen: Callable[[], str], began: float, seconds: float) -> float:
    while not _holds(condition):
        assert time.monotonic() - began < seconds, f"after {seconds} s still {seen()}"
        time.sleep(0.005)
    return time.monotonic() - began


def _holds(condition: Callable[[], bool]) -> bool:
    """A question that gets no answer in time is a condition that does not hold yet."""
    try:
        return condition()
    except dns.exception.Timeout:
        return False


def dig(port: int, name: str, kind: str = "A", *options: str, host: str = "127.0.0.1") -> str:
    """Dig's short answer."""
    command = ["dig", f"@{host}", "-p", str(port), name, kind, "+short", "+tries=1", "+time=3", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout


def with_resolv_conf(directory: Path, text: str, program: str, *arguments: str, python: str = sys.executable) -> str:
    """Runs a Python program where /etc/resolv.conf is this text, in a mount namespace of its own. Needs root."""
    file = directory / "resolv.conf"
    file.write_text(text)
    script = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(file), python, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cli(bridge: Bridge, *words: str) -> Any:
    """What a command says as JSON."""
    command = [sys.executable, "-m", "nacosdns.cli", *words, "-c", str(bridge.file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.stdout, done.stderr  # exit 1 is "the answer is no", which is an answer
    return json.loads(done.stdout)
