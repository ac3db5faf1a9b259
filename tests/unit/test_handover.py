from __future__ import annotations

import msgspec
import pytest

from nacosdns.core import handover
from nacosdns.core.handover import Handover, HeldChild, HeldFile, HeldPair, Upgrade

STATE = Handover(
    upgrade=Upgrade(number=3, state="replacing", started_at=1.0),
    config=b"config",
    password="secret",
    directory="/var/lib/nacosdns",
    cache_dir="/var/lib/nacosdns",
    control_group="",
    web_listen="",
    fronts=1,
    sockets=(HeldPair(host="127.0.0.1", port=53, slot=0, udp_fd=10, tcp_fd=11),),
    link=HeldFile(fd=12, device=1, number=2),
    control=HeldFile(fd=13, device=1, number=3),
    own_page_fd=14,
    pages={4: 15},
    children=(
        HeldChild(slot=1, role="keeper", page_fd=16),
        HeldChild(slot=3, role="front", page_fd=17, pid=99, channel_fd=18, unread=b"\0\0"),
    ),
)


def test_what_is_handed_over_is_read_as_it_was():
    assert handover.decode(handover.encode(STATE)) == STATE


def test_every_descriptor_is_named_once_and_none_that_is_not_there():
    assert sorted(STATE.descriptors) == [10, 11, 12, 13, 14, 15, 16, 17, 18]


def test_what_a_newer_release_adds_is_left_out():
    raw = msgspec.msgpack.decode(handover.encode(STATE))
    raw["weather"] = "fine"
    raw["children"][0]["mood"] = "good"

    assert handover.decode(handover.encode(raw)) == STATE


def test_what_an_older_release_lacks_has_a_default():
    raw = msgspec.msgpack.decode(handover.encode(STATE))
    for name in ("late", "pages", "next_id", "announced", "user", "disk_fault", "counters"):
        del raw[name]

    assert handover.decode(handover.encode(raw)).link == STATE.link


def test_a_later_version_is_refused_in_words():
    raw = msgspec.msgpack.decode(handover.encode(STATE)) | {"version": handover.VERSION + 1, "link": "elsewhere"}

    with pytest.raises(ValueError, match=f"this one knows {handover.VERSION}"):
        handover.decode(handover.encode(raw))


def test_counters_of_another_layout_are_told_apart():
    families, digest = handover.counters()

    assert handover.has_counters_of((families, digest))
    assert not handover.has_counters_of((families, digest ^ 1))
    assert not handover.has_counters_of((families + 1, digest))
