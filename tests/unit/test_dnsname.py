"""Domain names as bytes and as text."""

from __future__ import annotations

import dns.name
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core.dnsname import ending, fold, is_under, labels_of, name_text, name_to_wire, read_name, text_name
from nacosdns.errors import WireError

labels_within_a_name = st.lists(st.binary(min_size=1, max_size=63), max_size=20).filter(
    lambda labels: sum(len(label) + 1 for label in labels) <= 254
)


@given(labels_within_a_name)
def test_any_labels_go_to_wire_and_back(labels: list[bytes]) -> None:
    wire = name_to_wire(labels)

    assert labels_of(wire) == tuple(labels)
    assert dns.name.from_wire(wire, 0)[0].labels == (*labels, b"")


@given(labels_within_a_name)
def test_s05_s06_any_name_goes_to_text_and_back_without_loss(labels: list[bytes]) -> None:
    wire = name_to_wire(labels)

    assert text_name(name_text(wire)) == wire


@given(labels_within_a_name)
def test_a_name_as_text_cannot_forge_a_log_line(labels: list[bytes]) -> None:
    text = name_text(name_to_wire(labels))

    assert text.isprintable()
    assert " " not in text


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        (".", b"\0"),
        ("nacos", b"\5nacos\0"),
        ("nacos.", b"\5nacos\0"),
        ("Orders.Nacos.", b"\6Orders\5Nacos\0"),
        (r"a\.b.nacos", b"\3a.b\5nacos\0"),
        (r"a\\b", b"\3a\\b\0"),
        (r"a\032b", b"\3a b\0"),
        (r"\255\000", b"\2\xff\0\0"),
        ("订单", b"\6\xe8\xae\xa2\xe5\x8d\x95\0"),
        ("{{1}}", b"\5{{1}}\0"),
        ("a%2Fb.a+b", b"\5a%2Fb\3a+b\0"),
        ("providers:com.x.Foo::", b"\x0dproviders:com\1x\5Foo::\0"),
    ],
)
def test_text_is_read_with_escapes_and_raw_unicode(text: str, wire: bytes) -> None:
    assert text_name(text) == wire


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b"\0", "."),
        (b"\6Orders\5nacos\0", "Orders.nacos."),
        (b"\3a.b\3c\\d\0", r"a\.b.c\\d."),
        (b"\3a b\2\n\x7f\0", r"a\032b.\010\127."),
        (b"\6\xe8\xae\xa2\xe5\x8d\x95\0", "订单."),
        (b"\2\xff\xfe\0", r"\255\254."),
        (b"\3\xe2\x80\xae\0", r"\226\128\174."),  # right-to-left override
    ],
)
def test_s05_a_name_is_shown_readable_and_escaped(wire: bytes, text: str) -> None:
    assert name_text(wire) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty label"),
        ("a..b", "empty label"),
        (".a", "empty label"),
        ("a..", "empty label"),
        ("y" * 64, "label over 63 bytes"),
        ("订" * 22, "label over 63 bytes"),
        (".".join(["a" * 63] * 4), "name over 255 bytes"),
        ("a\\", "a lone backslash"),
        (r"a\12", "a lone backslash"),
        (r"\256", "a byte over 255"),
        ("\ud800", "not text"),
    ],
)
def test_s04_text_that_is_no_name_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        text_name(text)

    assert caught.value.reason == reason


@given(st.text())
def test_any_text_is_a_name_or_a_wire_error(text: str) -> None:
    try:
        wire = text_name(text)
    except WireError:
        return

    assert text_name(name_text(wire)) == wire


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"\1",
        b"\1a",
        b"\0\0",
        b"\x40" + b"a" * 64 + b"\0",
        b"\xc0\x00",
        b"\3ab\0",
        (b"\x3f" + b"a" * 63) * 4 + b"\0",
    ],
)
def test_bytes_that_are_no_uncompressed_name_are_refused(wire: bytes) -> None:
    with pytest.raises(WireError):
        labels_of(wire)


def test_s01_folding_changes_a_to_z_inside_labels_and_nothing_else() -> None:
    name = b"\x1a" + bytes(range(0x41, 0x5B)) + b"\x04\xc3\x89@[" + b"\0"

    assert fold(name) == b"\x1a" + bytes(range(0x61, 0x7B)) + b"\x04\xc3\x89@[" + b"\0"


@given(labels_within_a_name)
def test_folding_never_touches_a_length_byte(labels: list[bytes]) -> None:
    folded = labels_of(fold(name_to_wire(labels)))

    assert folded == tuple(label.lower() for label in labels)


HEADER = bytes(12)


@pytest.mark.parametrize(
    ("body", "at", "name", "end"),
    [
        (b"\1a\0", 12, b"\1a\0", 15),
        (b"\1a\0\1b\xc0\x0c", 15, b"\1b\1a\0", 19),
        (b"\1a\0\xc0\x0c\1b\xc0\x0f", 17, b"\1b\1a\0", 21),
    ],
)
def test_pointers_to_what_came_before_are_followed(body: bytes, at: int, name: bytes, end: int) -> None:
    assert read_name(HEADER + body, at) == (name, end)


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (b"\xc0\x0c", 12),  # to itself
        (b"\xc0\x0e\xc0\x0c", 14),  # two that lead to each other
        (b"\xc0\x0e\xc0\x0c\xc0\x0c", 16),  # into a loop of two
        (b"\1a\xc0\x0c", 12),  # back to its own beginning
        (b"\xc0\x0f\0\1a\0", 12),  # forward
        (b"\xc0\x04", 12),  # into the header
        (b"\xc0", 12),  # cut
        (b"\x41" + b"a" * 65 + b"\0", 12),
        (b"\x80a\0", 12),
        ((b"\x3f" + b"a" * 63) * 4 + b"\0", 12),  # 257 bytes
    ],
)
def test_s60_loops_and_odd_labels_are_refused(body: bytes, at: int) -> None:
    with pytest.raises(WireError):
        read_name(HEADER + body, at)


@pytest.mark.parametrize(("pointers", "is_read"), [(1, True), (127, True), (128, False), (4000, False)])
def test_a_name_goes_through_no_more_pointers_than_it_can_have_labels(pointers: int, is_read: bool) -> None:
    packet = (
        HEADER + b"\1a\0" + b"".join((0xC000 | max(12, at - 2)).to_bytes(2) for at in range(15, 15 + 2 * pointers, 2))
    )
    packet = packet[:15] + b"\xc0\x0c" + packet[17:]
    if is_read:
        assert read_name(packet, len(packet) - 2) == (b"\1a\0", len(packet))
    else:
        with pytest.raises(WireError, match="malformed"):
            read_name(packet, len(packet) - 2)


@pytest.mark.parametrize(
    ("name", "like", "end"),
    [
        ("a.b.nacos", "nacos", "nacos"),
        ("q.xn--fsq", "例", "xn--fsq"),
        ("a.b.c.d", "x.yy", "c.d"),
        ("a", "x.y", "a"),
        ("a.b", ".", "."),
        ("a\\.b.c", "x", "c"),
    ],
)
def test_the_end_of_a_name_has_as_many_labels_as_another(name: str, like: str, end: str) -> None:
    assert ending(text_name(name), text_name(like)) == text_name(end)


@given(
    st.lists(st.sampled_from([b"a", b"nacos", b"a\5nacos", b"b" * 63, b"\0"]), max_size=3),
    st.lists(st.sampled_from([b"a", b"nacos", b"os"]), max_size=2),
)
def test_a_name_is_under_another_when_its_last_labels_are_those(below: list[bytes], above: list[bytes]) -> None:
    for labels in (below, [*below, *above]):
        expected = not above or labels[-len(above) :] == above

        assert is_under(name_to_wire(labels), name_to_wire(above)) == expected


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=320))
def test_s60_reading_a_name_from_any_bytes_gives_a_name_or_a_wire_error(packet: bytes, at: int) -> None:
    try:
        name, end = read_name(packet, at)
    except WireError:
        return

    assert name_to_wire(labels_of(name)) == name
    assert at < end <= len(packet)
