"""The addresses of a host name, asked of given resolvers rather than of this host's libc, which may ask us.

Must not know: whose name it is, which resolvers there are. Rules: the hosts file comes first, as everywhere; a denial of a
resolver is believed, a failure makes the next one be asked; one packet at a time, each with a deadline.
"""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from nacosdns import config
from nacosdns.core.dnsname import text_name
from nacosdns.core.dnsreply import answer_records
from nacosdns.core.model import Rcode, RecordType
from nacosdns.edge import asking
from nacosdns.errors import UpstreamError, WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HOSTS = "/etc/hosts"
ASK_S = 1.0
_KINDS = (RecordType.A, RecordType.AAAA)
_CLASS_IN = b"\x00\x01"


def is_address(host: str) -> bool:
    """Whether this is an IP address already."""
    return config.is_address(host.partition("%")[0])


def in_hosts_file(host: str, path: str = HOSTS) -> tuple[str, ...]:
    """The addresses that the hosts file gives this name (hosts(5)), IPv4 first; empty when it does not name it."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    wanted = host.rstrip(".").lower()
    rows = (line.partition("#")[0].lower().split() for line in lines)
    found = [words[0] for words in rows if wanted in words[1:] and is_address(words[0])]
    return tuple(sorted(dict.fromkeys(found), key=lambda address: ":" in address))


async def ask(host: str, resolvers: Sequence[tuple[str, int]], search: Iterable[str] = ()) -> tuple[str, ...]:
    """The addresses of a name; empty when resolvers say that there are none. UpstreamError when none of them answers."""
    for name in _spellings(host, tuple(search)):
        for kind in _KINDS:
            found = await _first_answer(name, kind, resolvers)
            if found:
                return found
    return ()


def _spellings(host: str, search: tuple[str, ...]) -> Iterator[bytes]:
    """As libc tries them with ndots 1: a name with a dot as it is first, another with each suffix of the list first."""
    plain = host.rstrip(".")
    longer = [] if host.endswith(".") else [f"{plain}.{suffix.rstrip('.')}" for suffix in search if suffix.rstrip(".")]
    for name in (plain, *longer) if "." in plain else (*longer, plain):
        try:
            yield text_name(f"{name}.")
        except WireError:
            continue  # too long with this suffix


async def _first_answer(name: bytes, kind: RecordType, resolvers: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    question = name + kind.to_bytes(2, "big") + _CLASS_IN
    failures = []
    for address, port in resolvers:
        try:
            async with asyncio.timeout(ASK_S):
                reply = await asking.exchange(address, port, question, fits=lambda reply: _echoes(reply, question))
                return _addresses(reply, kind)
        except TimeoutError:
            failures.append(f"{address} does not answer")
        except (OSError, WireError) as error:
            failures.append(f"{address}: {error}")
    raise UpstreamError("; ".join(failures) or "there is no resolver to ask")


def _addresses(reply: bytes, kind: RecordType) -> tuple[str, ...]:
    rcode = reply[3] & 0x0F
    if rcode not in {Rcode.NOERROR, Rcode.NXDOMAIN}:
        raise WireError(f"rcode {rcode}")
    records = [record for record in answer_records(reply) if record.type == kind]
    return tuple(dict.fromkeys(str(ipaddress.ip_address(record.rdata)) for record in records))


def _echoes(reply: bytes, question: bytes) -> bool:
    """Names compare without case; the four bytes of type and class as they are."""
    echoed = reply[12 : 12 + len(question)]
    return echoed[:-4].lower() == question[:-4].lower() and echoed[-4:] == question[-4:]
