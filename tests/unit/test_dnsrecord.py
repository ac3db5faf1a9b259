"""Records of our own, as an independent reader sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dns.message
import pytest

from nacosdns.core import dnswire
from nacosdns.core.dnsname import name_to_wire
from nacosdns.core.model import Answer, Query
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from nacosdns.core.model import Record

NAME = b"\6orders\5nacos\0"
QUERY = Query(7, 0x0100, NAME + b"\0\1\0\1", NAME, 1)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (dnswire.address_record(NAME, 5, "10.0.0.1"), "5 IN A 10.0.0.1"),
        (dnswire.address_record(NAME, 5, "2001:DB8::1"), "5 IN AAAA 2001:db8::1"),
        (dnswire.address_record(NAME, 5, "fe80::1%eth0"), "5 IN AAAA fe80::1"),
        (dnswire.srv(NAME, 0, 1, 2, 65535, b"\1a\0"), "0 IN SRV 1 2 65535 a."),
        (dnswire.txt(NAME, 1, [b"a=b", b"", b"c"]), '1 IN TXT "a=b" "" "c"'),
        (dnswire.txt(NAME, 1, [b"x" * 256]), f'1 IN TXT "{"x" * 255}" "x"'),
        (dnswire.txt(NAME, 1, []), '1 IN TXT ""'),
        (dnswire.txt(NAME, 1, [dnswire.key_value("region", "a b")]), '1 IN TXT "region=a b"'),
        (dnswire.ns(NAME, 1, b"\1a\0"), "1 IN NS a."),
        (dnswire.cname(NAME, 2**31 - 1, b"\1a\0"), "2147483647 IN CNAME a."),
    ],
)
def test_each_builder_makes_a_record_that_others_read(record: Record, text: str) -> None:
    reply = dns.message.from_wire(dnswire.render(QUERY, Answer(answers=(record,)), size_max=1232))

    assert str(reply.answer[0]) == f"orders.nacos. {text}"


def test_a_record_without_its_owner_is_what_follows_the_pointer_in_a_reply() -> None:
    record = dnswire.address_record(NAME, 1, "10.0.0.1")

    packet = dnswire.render(QUERY, Answer(answers=(record,)), size_max=512)

    assert packet == packet[: 12 + len(QUERY.question)] + b"\xc0\x0c" + dnswire.record_tail(record)


@pytest.mark.parametrize(
    "text", ["db", "10.0.0", "10.0.0.256", "010.0.0.1", "10.0.0.1 ", "1.2.3.4.5", "::g", "", "\u0661.0.0.1"]
)
def test_s18_what_is_no_address_makes_no_address_record(text: str) -> None:
    with pytest.raises(WireError, match="address"):
        dnswire.address_record(NAME, 1, text)

    assert dnswire.pack_address(text) is None


def test_a_text_that_no_record_can_hold_is_refused() -> None:
    with pytest.raises(WireError, match="text"):
        dnswire.txt(NAME, 1, [b"x" * 65400])


@pytest.mark.parametrize("size", [1, 63, 180, 255])
def test_the_soa_of_a_name_of_any_length_can_be_read(size: int) -> None:
    labels = [b"x" * min(63, size - 2 - at) for at in range(0, size - 1, 64) if size - 2 - at > 0]
    zone = name_to_wire(labels)
    packet = dnswire.render(QUERY, Answer(authority=(dnswire.soa(zone, 1, 1, 1),)), size_max=65535)
    (rrset,) = dns.message.from_wire(packet).authority

    assert rrset.name.to_wire() == rrset[0].mname.to_wire() == zone
    assert rrset[0].rname.to_wire() in {zone, b"\nhostmaster" + zone}
