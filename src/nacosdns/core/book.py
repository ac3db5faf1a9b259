"""The answer book: what a front knows of services, packed; and the doors to what is prepared of it.

Must not know: sockets, the clock, how a miss is filled. Rules: a snapshot stays encoded until it is asked for, and in a
large book also compressed, so that a hundred thousand services fit a host; every change drops what was prepared of the
service, in the same call.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.frames import Known, decode_snapshot
from nacosdns.core.model import ServiceKey
from nacosdns.core.prepared import Prepared
from nacosdns.core.spelling import folded_of
from nacosdns.core.suffixes import Suffixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nacosdns.core.model import Snapshot
    from nacosdns.core.page import Page
    from nacosdns.core.spelling import FoldedKey

DECODED_MAX = 32
ADDRESSES_MAX = 100_000
ABSENT_S = 1.0
SEARCHED_AT_ONCE = 300
PACKED_FROM = 20_000
"""From so many services on, snapshots are compressed: it costs 10 µs a change and saves a half of the memory."""
_COMPRESSED = b"\x78"  # how zlib's data begins; a snapshot's begins with an array


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The beginning of an encoded snapshot: enough to name it."""

    key: ServiceKey
    instances: msgspec.Raw
    revision: int


class _Said(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What answers are made from, of an encoded snapshot; the rest says how sure it is. The fields are Snapshot's."""

    key: ServiceKey
    instances: msgspec.Raw
    revision: int
    source: msgspec.Raw
    confirmed_at: float
    protection: msgspec.Raw
    protected_since: float
    threshold_reached: bool
    unconfirmed: int
    demoted: int
    last_healthy: msgspec.Raw
    live: bool

    def holds_on(self, other: _Said) -> bool:
        """Whether what was said by this may be said by the other: the same, and still followed if it was."""
        return (
            self.key == other.key
            and (other.live or not self.live)
            and self.instances == other.instances
            and self.threshold_reached == other.threshold_reached
            and self.demoted == other.demoted
            and self.last_healthy == other.last_healthy
        )


_head_decoder = msgspec.msgpack.Decoder(_Head)
_said_decoder = msgspec.msgpack.Decoder(_Said)
_Spellings = dict[ServiceKey, bytes]


class Book:
    """What a front knows of services. ``groups`` as they were ever spelled; ``clashes`` counts answers where spellings met."""

    def __init__(self, vector: Callable[[bytes], bytes] | None = None) -> None:
        """``vector``: see Prepared."""
        self.prepared = Prepared(vector)
        self.suffixes = Suffixes()
        self.groups: set[str] = set()
        self.clashes = 0
        self._services: dict[str, bytes | _Spellings] = {}
        self._decoded: OrderedDict[bytes, Snapshot] = OrderedDict()
        self._told: dict[str, str] = {}
        self._absent: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Book services={len(self._services)} {self.prepared!r}>"

    def __len__(self) -> int:
        return len(self._services)

    def services(self) -> list[str]:
        """The book's names of all services."""
        return list(self._services)

    def known(self, services: Iterable[str]) -> Iterator[Known]:
        """What is known of these, still encoded."""
        for service in services:
            held = self._services.get(service, {})
            for packed in held.values() if isinstance(held, dict) else (held,):
                yield _unpack(packed)

    def keys_of(self, services: Iterable[str]) -> list[ServiceKey]:
        """The keys of the services of these names in the book, as the registry spells them."""
        keys: list[ServiceKey] = []
        for service in services:
            held = self._services.get(service)
            if isinstance(held, dict):
                keys += held
            elif held is not None:
                keys.append(_head_decoder.decode(_plain(held)).key)
        return keys

    # --- what is known

    def update(self, known: Known) -> None:
        """A newer value of a service. What was prepared stays when only how sure we are has changed."""
        key = known.key
        folded = folded_of(key)
        service = service_id(folded)
        packed = self.packed(known)
        self.groups.add(key.group)
        held = self._services.get(service)
        if held is None:
            self._services[service] = packed
            self.suffixes.add(folded)
        elif isinstance(held, dict):
            held[key] = packed
        else:
            former = _said_decoder.decode(_plain(held))
            self._services[service] = packed if former.key == key else {former.key: held, key: packed}
            if former.holds_on(_said_decoder.decode(known.body)):
                return
        self._absent.clear()
        self.prepared.drop(service)

    def replaced_by(self, known: Known) -> bytes | None:
        """What this value takes the place of, and answers otherwise; None unless it is the one value of a followed service."""
        held = self._services.get(service_of(known.key))
        if held is None or isinstance(held, dict):
            return None
        former, newer = _said_decoder.decode(_plain(held)), _said_decoder.decode(known.body)
        return held if newer.live and former.key == newer.key and not former.holds_on(newer) else None

    def replace(self, known: Known, packed: bytes, *, former: bytes, renewed: Mapping[Page, Page]) -> None:
        """As ``update``, with pages made of this value beforehand, when nothing happened to the service meanwhile."""
        service = service_of(known.key)
        if self._services.get(service) is not former:
            self.update(known)
            return
        self._services[service] = packed
        self._absent.clear()
        self.prepared.renew(service, renewed)

    def remove(self, key: ServiceKey) -> bool:
        """The service is gone. Returns whether it was known."""
        folded = folded_of(key)
        service = service_id(folded)
        held = self._services.get(service)
        if held is None:
            return False
        spellings = held if isinstance(held, dict) else {_head_decoder.decode(_plain(held)).key: held}
        found = spellings.pop(key, None) is not None
        if not spellings:
            del self._services[service]
            self.suffixes.remove(folded)
        elif len(spellings) == 1:
            self._services[service] = next(iter(spellings.values()))
        self.prepared.drop(service)
        return found

    def find(self, folded: FoldedKey, asked: str) -> Snapshot | None:
        """The service of this folded key: the spelling asked for wins, else the first in code-point order, counted."""
        held = self._services.get(service_id(folded))
        if held is None:
            return None
        if not isinstance(held, dict):
            return self.decoded(held)
        self.clashes += 1
        exact = next((key for key in held if key.service == asked), None)
        return self.decoded(held[exact or min(held)])

    def knows(self, folded: FoldedKey) -> bool:
        """Whether a service of this folded key is known."""
        return service_id(folded) in self._services

    def is_ambiguous(self, folded: FoldedKey) -> bool:
        """Whether several spellings share the key, so that its answers must not be prepared."""
        return isinstance(self._services.get(service_id(folded)), dict)

    # --- addresses of instances

    def tell_address(self, address: str, service: str) -> None:
        """An answer of this service names the address, so it will be asked for."""
        if len(self._told) >= ADDRESSES_MAX:
            self._told.clear()
        self._told[address] = service

    def has_address(self, address: str) -> bool | None:
        """Whether an instance of a known service has this address; None: only ``search`` can say."""
        service = self._told.get(address)
        if service is not None and self._holds(service, _needle(address)):
            return True
        return False if self._absent.get(address, -inf) > self.prepared.now else None

    def search(self, addresses: Iterable[str]) -> Iterator[None]:
        """Looks for these addresses in the encoded snapshots, a slice of the book at each step."""
        needles = {address: _needle(address) for address in addresses}
        for at, service in enumerate(list(self._services)):
            if at % SEARCHED_AT_ONCE == SEARCHED_AT_ONCE - 1:
                yield
            for address in [address for address, needle in needles.items() if self._holds(service, needle)]:
                self.tell_address(address, service)
                del needles[address]
            if not needles:
                return
        if len(self._absent) >= ADDRESSES_MAX:
            self._absent.clear()
        self._absent.update(dict.fromkeys(needles, self.prepared.now + ABSENT_S))

    def _holds(self, service: str, needle: bytes) -> bool:
        held = self._services.get(service, {})
        return any(needle in _plain(packed) for packed in (held.values() if isinstance(held, dict) else (held,)))

    def packed(self, known: Known) -> bytes:
        """The value as the book holds it."""
        return zlib.compress(known.body, 1) if len(self._services) >= PACKED_FROM else bytes(known.body)

    def decoded(self, packed: bytes) -> Snapshot:
        """The snapshot in it; the last few are kept, for a change is asked for by one type after the other."""
        snapshot = self._decoded.get(packed)
        if snapshot is None:
            snapshot = self._decoded[packed] = decode_snapshot(_plain(packed))
            if len(self._decoded) > DECODED_MAX:
                self._decoded.popitem(last=False)
        return snapshot


def _plain(packed: bytes) -> bytes:
    return zlib.decompress(packed) if packed[:1] == _COMPRESSED else packed


def _unpack(packed: bytes) -> Known:
    body = _plain(packed)
    head = _head_decoder.decode(body)
    return Known(head.key, head.revision, msgspec.Raw(body))


def _needle(address: str) -> bytes:
    """An address as it stands in an encoded snapshot."""
    text = address.encode()
    return bytes([0xA0 | len(text)]) + text if len(text) < 32 else bytes([0xD9, len(text)]) + text


def service_of(key: ServiceKey) -> str:
    """The book's name of the service of this key."""
    return service_id(folded_of(key))


def service_id(folded: FoldedKey) -> str:
    """The book's name of a service: one text of its namespace, group and name, all folded."""
    return "\0".join(folded)
