"""resolv.conf: which file counts, which servers it names; and which addresses are this host's own.

Must not know: who uses the servers. Rules: read as glibc reads (resolv.conf(5)), but every server counts, not three;
a bad line is a warning, never an error; a missing or empty file is an empty list.
"""

from __future__ import annotations

import socket
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SYSTEMD_RESOLVED = "/run/systemd/resolve/resolv.conf"
NETWORK_MANAGER = "/run/NetworkManager/resolv.conf"
ETC = "/etc/resolv.conf"
SAVED_NAME = "resolv.conf.saved"
FIB_TRIE = "/proc/net/fib_trie"
IF_INET6 = "/proc/net/if_inet6"
_BYTES_MAX = 1 << 20


class ResolvConf(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says. ``path`` is "" when no file was found; ``nameservers`` are IP addresses, zones kept."""

    path: str = ""
    nameservers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def parse(text: bytes, path: str = "") -> ResolvConf:
    """Reads the text of a resolv.conf. Never raises: what cannot be read is in ``warnings`` with its line number."""
    nameservers: dict[str, None] = {}
    search: tuple[str, ...] = ()
    options: list[str] = []
    warnings: list[str] = []
    for number, line in enumerate(text.decode("utf-8", "replace").split("\n"), start=1):
        keyword, values = _split(line)
        match keyword:
            case "nameserver":
                server = _server(values[0] if values else "")
                if server:
                    nameservers[server] = None
                else:
                    warnings.append(f"line {number}: not an IP address: {line.strip()!r}")
            case "search" | "domain":  # the last one counts
                search = values if keyword == "search" else values[:1]
            case "options":
                options.extend(values)
            case "" | "sortlist":
                pass
            case _:
                warnings.append(f"line {number}: unknown word {keyword!r}")
    return ResolvConf(
        path=path,
        nameservers=tuple(nameservers),
        search=search,
        options=tuple(options),
        warnings=tuple(warnings),
    )


def candidates(state_dir: str, configured: str = "") -> tuple[str, ...]:
    """The files that "resolv.conf" may mean, in order; ``configured`` is [forward] resolv_conf and wins alone.

    ``state_dir`` (cache.dir) is where the guard keeps the copy of the file that it replaced.
    """
    if configured:
        return (configured,)
    return (SYSTEMD_RESOLVED, NETWORK_MANAGER, str(Path(state_dir) / SAVED_NAME), ETC)


def choose(paths: Iterable[str], is_ours: Callable[[str], bool]) -> ResolvConf:
    """The first file that names a server which is not ourselves, else the first that exists, else an empty one."""
    first: ResolvConf | None = None
    for path in paths:
        found = read(path)
        if any(not is_ours(server) for server in found.nameservers):
            return found
        if first is None and found.path:
            first = found
    return first or ResolvConf(warnings=("no resolv.conf was found",))


def read(path: str) -> ResolvConf:
    """Reads a file; one that is missing or unreadable is an empty ResolvConf, the latter with a warning."""
    try:
        with Path(path).open("rb") as file:
            return parse(file.read(_BYTES_MAX), path)
    except (FileNotFoundError, NotADirectoryError):
        return ResolvConf()
    except OSError as error:
        return ResolvConf(path=path, warnings=(f"{path}: {error.strerror}",))


def local_addresses(fib_trie: str = FIB_TRIE, if_inet6: str = IF_INET6) -> frozenset[str]:
    """The IPv4 and IPv6 addresses of this host, loopback among them. Where the kernel does not tell: loopback only."""
    return frozenset({"127.0.0.1", "::1"} | _local_v4(_lines(fib_trie)) | _local_v6(_lines(if_inet6)))


def _split(line: str) -> tuple[str, tuple[str, ...]]:
    if line.startswith(("#", ";")):
        return "", ()
    words = line.split()
    if not words or line[0].isspace():  # glibc wants the keyword at the start of the line
        return "", ()
    return words[0], tuple(words[1:])


def _server(text: str) -> str:
    """The address as we spell it, or "" for none. IPv4 in all the forms that inet_aton takes (127.1)."""
    try:
        if ":" in text:
            return str(IPv6Address(text))
        return socket.inet_ntoa(socket.inet_aton(text)) if text else ""
    except (OSError, ValueError):
        return ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _local_v4(lines: list[str]) -> set[str]:
    """In fib_trie a leaf ``|-- ADDRESS`` is followed by ``/32 host LOCAL`` when the address is the host's own."""
    found: set[str] = set()
    leaf = ""
    for line in lines:
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"]:
            found.add(leaf)
    return found


def _local_v6(lines: list[str]) -> set[str]:
    return {str(IPv6Address(bytes.fromhex(line[:32]))) for line in lines if line[32:33] == " "}
