from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core.resolvtext import (
    FIGHT_S,
    FIGHT_WRITES,
    PAUSE_MAX_S,
    Fights,
    Found,
    Saved,
    Wish,
    decode_saved,
    encode_saved,
    is_ours,
    plan,
    rewritten,
    servers_of,
)

WISH = Wish(("127.0.0.1", "10.0.0.5", "10.0.0.6"), "/var/lib/nacosdns/resolv.conf.saved")
DHCP = b"# by dhclient\ndomain corp.example\nsearch corp.example example.com\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0 timeout:3\n"
STUB = b"nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n"


def body(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if not line.startswith("#")]


def test_ours_is_first_the_nodes_are_behind_it_and_search_domain_and_options_stay():
    assert body(rewritten(DHCP, WISH)) == [
        "nameserver 127.0.0.1",
        "nameserver 10.0.0.5",
        "nameserver 10.0.0.6",
        "domain corp.example",
        "search corp.example example.com",
        "options edns0 timeout:1 attempts:2",
    ]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("options rotate ndots:2", ["ndots:2"]),
        ("options attempts:5\noptions timeout:30 inet6", ["inet6"]),
        ("options edns0 edns0", ["edns0"]),
        ("", []),
    ],
)
def test_options_of_others_stay_but_those_that_we_set_and_rotate(options, kept):
    words = body(rewritten(options.encode(), WISH))[-1].split()

    assert words == ["options", *kept, "timeout:1", "attempts:2"]


def test_lines_that_glibc_does_not_read_go_and_windows_line_ends_too():
    text = b"; comment\r\n  nameserver 192.0.2.1\r\nsortlist 10.0.0.0\r\nnameserver\t192.0.2.1\r\n"

    assert body(rewritten(text, WISH))[3:] == ["sortlist 10.0.0.0", "options timeout:1 attempts:2"]


@given(st.binary(max_size=200))
def test_any_text_becomes_one_that_stays_as_it_is(text):
    once = rewritten(text, WISH)

    assert rewritten(once, WISH) == once
    assert servers_of(once) == WISH.servers
    assert is_ours(once)
    assert plan(Found(kind="file", text=once), Saved(), WISH).write is None


@given(st.text(st.sampled_from("# nameservroptions\n\r\t:.0123456789"), max_size=200))
def test_a_text_of_resolver_words_becomes_one_that_stays_as_it_is(text):
    once = rewritten(text.encode(), WISH)

    assert rewritten(once, WISH) == once
    assert servers_of(once) == WISH.servers


def test_what_stood_there_is_kept_before_it_is_replaced():
    planned = plan(Found(kind="file", text=DHCP), None, WISH)

    assert planned.save == Saved(text=DHCP)
    assert planned.write == rewritten(DHCP, WISH)


@pytest.mark.parametrize(
    "found",
    [
        Found(kind="missing"),
        Found(kind="file"),
        Found(kind="link", target="../run/nowhere"),
        Found(kind="file", text=b"nameserver 127.0.0.1\n"),
    ],
    ids=["missing", "empty", "leads nowhere", "names only us"],
)
def test_what_names_nobody_else_is_kept_only_when_nothing_is(found):
    kept = Saved(kind="link", target="../run/stub", text=DHCP)

    assert plan(found, None, WISH).save == Saved(kind=found.kind, target=found.target, text=found.text)
    assert plan(found, kept, WISH).save is None


def test_an_empty_file_is_written_from_the_copy():
    written = plan(Found(kind="file", text=b"\n"), Saved(text=DHCP), WISH).write

    assert written == rewritten(DHCP, WISH)


def test_a_new_lease_replaces_the_copy_and_an_edit_of_ours_does_not_make_the_link_forgotten():
    kept = Saved(kind="link", target="../run/systemd/resolve/stub-resolv.conf", text=STUB)
    edited = rewritten(STUB, WISH) + b"nameserver 192.0.2.9\n"

    assert plan(Found(kind="file", text=DHCP), kept, WISH).save == Saved(text=DHCP)
    after = plan(Found(kind="file", text=edited), kept, WISH).save
    assert after is not None
    assert (after.kind, after.target) == ("link", kept.target)
    assert "192.0.2.9" in servers_of(after.text)
    assert not is_ours(after.text)


def test_what_the_link_that_we_replaced_leads_to_is_followed():
    kept = Saved(kind="link", target="/run/resolvconf/resolv.conf", text=STUB, fought_at=7.0)
    ours = Found(kind="file", text=rewritten(STUB, WISH))

    assert plan(ours, kept, WISH, behind=STUB) == (None, None)
    assert plan(ours, kept, WISH, behind=b"") == (None, None)
    assert plan(ours, kept, WISH, behind=DHCP) == (
        Saved(kind="link", target=kept.target, text=DHCP, fought_at=7.0),
        None,
    )


@given(st.binary(max_size=100), st.text(max_size=20), st.floats(0, 2e9))
def test_the_copy_is_read_as_it_was_written(text, target, fought_at):
    saved = Saved(kind="link", target=target, fought_at=fought_at, text=text)

    assert decode_saved(encode_saved(saved)) == saved
    assert servers_of(encode_saved(saved)) == servers_of(b"\n" + text)


@given(st.binary(max_size=60))
def test_any_other_bytes_are_the_text_of_a_file(content):
    assert decode_saved(content).kind == "file"
    assert decode_saved(b"# nacosdns: " + content.replace(b"{", b"")).kind == "file"


def test_somebody_who_writes_again_and_again_gets_the_file_for_a_while_and_longer_each_time():
    fights, now, pauses = Fights(), 0.0, []
    while len(pauses) < 6:
        now += 2.0
        if fights.may_write(now) and (pause_s := fights.wrote(now)):
            pauses.append(pause_s)

    assert pauses == [60, 120, 240, 480, PAUSE_MAX_S, PAUSE_MAX_S]


def test_a_write_now_and_then_is_no_fight_and_a_long_peace_ends_the_memory_of_one():
    fights = Fights()
    for turn in range(50):
        assert fights.wrote(turn * FIGHT_S / (FIGHT_WRITES - 2)) == 0
    last = [fights.wrote(5000.0 + turn) for turn in range(FIGHT_WRITES)]
    again = [fights.wrote(9000.0 + turn) for turn in range(FIGHT_WRITES)]

    assert last[-1] == again[-1] == FIGHT_S


def test_the_file_says_who_keeps_it_and_where_the_copy_is():
    assert re.match(
        r"# .*nacosdns.*/var/lib/nacosdns/resolv\.conf\.saved$", rewritten(b"", WISH).decode().splitlines()[0]
    )
