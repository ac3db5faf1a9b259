"""Who may ask: networks, and a bounded table of addresses already judged.

Must not know: interfaces (the subnets of ``link`` are handed in). Rule: every door asks here; a front whose addresses
are all loopback asks nobody.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network, IPv6Network

JUDGED_MAX = 16_384
WORDS = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "fc00::/7",
        "fe80::/10",
    ),
    "all": ("0.0.0.0/0", "::/0"),
    "link": (),
}
"""The words of server.allow and their networks; those of ``link`` are known only on the host."""


def is_near(address: str) -> bool:
    """Whether an address is of a private network or of this host: a client there is likely one of the operator's own."""
    networks = (ip_network(text) for text in (*WORDS["loopback"], *WORDS["private"]))
    plain = ip_address(address.partition("%")[0])
    return any(_same(network, plain.version) and plain in network for network in networks)


def open_entries(allow: Iterable[str]) -> list[str]:
    """The entries of server.allow that let everybody ask, at least by IPv4 or by IPv6."""
    return [entry for entry in allow if any(ip_network(text, strict=False).prefixlen == 0 for text in _networks(entry))]


def _networks(entry: str) -> tuple[str, ...]:
    return WORDS.get(entry, (entry,))


class Access:
    """Judges raw addresses (4 or 16 bytes). ``judged`` holds only those that are allowed; the fast path reads it.

    Those that are refused have a table of their own, so that a flood of them costs a look-up each and evicts nobody.
    What is told by ``refused`` is counted: one address may be judged several times for a question, and be our own canary's.
    """

    def __init__(self, allow: Iterable[str], link: Iterable[str] = ()) -> None:
        words = tuple(allow)
        texts = [text for word in words for text in _networks(word)]
        if "link" in words:
            texts += link
        self._networks = tuple(ip_network(text, strict=False) for text in texts)
        self.judged: dict[bytes, bool] = {}
        self._refused: set[bytes] = set()
        self._known: set[bytes] = set()
        self._forgotten = 0
        self.refused_queries = 0
        self.refused_last = b""

    def __repr__(self) -> str:
        return f"<Access networks={len(self._networks)} judged={len(self.judged)} refused={len(self._refused)}>"

    def allows(self, address: bytes) -> bool:
        """Whether this client may ask; an unknown address (``b""``) may."""
        if not address or address in self.judged:
            return True
        if address in self._refused:
            return False
        if not self.contains(address):
            if len(self._refused) >= JUDGED_MAX:
                self._refused.clear()
            self._refused.add(address)
            return False
        if len(self.judged) >= JUDGED_MAX:
            self.judged.clear()
        self.judged[address] = True
        return True

    def refused(self, address: bytes) -> None:
        """A client was told that it may not ask."""
        if len(self._known) >= JUDGED_MAX and address not in self._known:
            self._forgotten += len(self._known)
            self._known.clear()
        self._known.add(address)
        self.refused_last = address
        self.refused_queries += 1

    @property
    def refused_count(self) -> int:
        """How many clients were refused; some may be counted again when they were very many."""
        return self._forgotten + len(self._known)

    def contains(self, address: bytes) -> bool:
        """Whether an address lies in an allowed network."""
        plain = ip_address(address)
        mapped = getattr(plain, "ipv4_mapped", None)
        plain = mapped or plain
        return any(plain in network for network in self._networks if _same(network, plain.version))


def _same(network: IPv4Network | IPv6Network, version: int) -> bool:
    return network.version == version
