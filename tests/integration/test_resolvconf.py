"""resolv.conf and its changes: S65 S70 S77 as far as reading goes."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core.resolvers import ours, parse_endpoint
from nacosdns.edge import resolvconf
from nacosdns.edge.resolvconf import ResolvConf, choose, local_addresses, parse, read
from nacosdns.edge.watch import PollingWatcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

FILES = {
    "one server": (b"nameserver 192.0.2.53\n", ["192.0.2.53"], 0),
    "no end of line": (b"nameserver 192.0.2.53", ["192.0.2.53"], 0),
    "IPv6 only": (b"nameserver 2001:db8::53\n", ["2001:db8::53"], 0),
    "link-local with zone": (b"nameserver fe80::1%lo\n", ["fe80::1%lo"], 0),
    "empty": (b"", [], 0),
    "comments only": (b"# nameserver 192.0.2.1\n; nameserver 192.0.2.2\n\n", [], 0),
    "CRLF": (b"search example.com\r\nnameserver 192.0.2.53\r\n", ["192.0.2.53"], 0),
    "tabs and blanks": (b"nameserver\t \t192.0.2.53 \t\n", ["192.0.2.53"], 0),
    "five servers": (
        b"".join(b"nameserver 192.0.2.%d\n" % number for number in range(1, 6)),
        [f"192.0.2.{number}" for number in range(1, 6)],
        0,
    ),
    "a host name": (b"nameserver localhost\nnameserver 192.0.2.53\n", ["192.0.2.53"], 1),
    "no value": (b"nameserver\nnameserver \n", [], 2),
    "a remark behind": (b"nameserver 192.0.2.53 # the first\n", ["192.0.2.53"], 0),
    "indented: not read by glibc": (b"  nameserver 192.0.2.53\n", [], 0),
    "a word glued on": (b"nameserver192.0.2.53\n", [], 1),
    "the short form of inet_aton": (b"nameserver 127.1\n", ["127.0.0.1"], 0),
    "the same twice": (b"nameserver 192.0.2.53\nnameserver 192.0.2.53\n", ["192.0.2.53"], 0),
    "bad bytes": (b"\xff\xfe\nnameserver \xff\nnameserver 192.0.2.53\n", ["192.0.2.53"], 2),
    "a port is not for resolv.conf": (b"nameserver 192.0.2.53:5353\nnameserver [::1]:53\n", [], 2),
    "unknown word": (b"nameservers 192.0.2.53\n", [], 1),
    "sortlist": (b"sortlist 192.0.2.0/24\nnameserver 192.0.2.53\n", ["192.0.2.53"], 0),
}


@pytest.mark.parametrize("name", FILES)
def test_s70_resolv_conf_is_read_as_glibc_reads_it(name: str) -> None:
    text, servers, warnings = FILES[name]
    found = parse(text, "file")

    assert (list(found.nameservers), len(found.warnings)) == (servers, warnings)


def test_search_list_and_options_are_told_and_the_last_search_line_counts() -> None:
    found = parse(b"domain a.test\nsearch b.test c.test\noptions ndots:5 rotate\noptions timeout:1\n")

    assert (found.search, found.options) == (("b.test", "c.test"), ("ndots:5", "rotate", "timeout:1"))


def test_a_warning_names_its_line() -> None:
    (warning,) = parse(b"# first\nnameserver localhost\n").warnings

    assert warning == "line 2: not an IP address: 'nameserver localhost'"


@given(text=st.binary(max_size=200))
def test_s70_no_bytes_raise_and_every_server_is_an_address(text: bytes) -> None:
    for server in parse(b"nameserver " + text).nameservers:
        assert parse_endpoint(server).port == 53


def test_s70_a_missing_file_is_an_empty_one_and_an_unreadable_one_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    assert read(str(tmp_path / "none")) == ResolvConf()
    assert read(str(tmp_path / "file" / "below")) == ResolvConf()
    assert read(str(tmp_path)).warnings == (f"{tmp_path}: Is a directory",)


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="ascii")
    return str(path)


def is_ours(server: str) -> bool:
    return parse_endpoint(server) in ours(["127.0.0.1:53"], [])


def test_the_first_file_that_exists_counts(tmp_path: Path) -> None:
    paths = [
        str(tmp_path / "none"),
        write(tmp_path, "first", "nameserver 192.0.2.1\n"),
        write(tmp_path, "second", "nameserver 192.0.2.2\n"),
    ]

    assert choose(paths, is_ours) == ResolvConf(path=paths[1], nameservers=("192.0.2.1",))


def test_s65_a_file_that_names_only_ourselves_is_passed_over_while_another_names_somebody(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, "ours", "nameserver 127.0.0.1\n"),
        write(tmp_path, "empty", ""),
        write(tmp_path, "other", "nameserver 127.0.0.1\nnameserver 192.0.2.2\n"),
    ]

    assert choose(paths, is_ours).nameservers == ("127.0.0.1", "192.0.2.2")
    assert choose(paths[:2], is_ours).path == paths[0]
    assert choose([], is_ours).warnings == ("no resolv.conf was found",)


def test_the_lists_of_resolved_and_networkmanager_come_before_the_saved_copy_and_etc() -> None:
    assert resolvconf.candidates("/state") == (
        "/run/systemd/resolve/resolv.conf",
        "/run/NetworkManager/resolv.conf",
        "/state/resolv.conf.saved",
        "/etc/resolv.conf",
    )
    assert resolvconf.candidates("/state", "/my/file") == ("/my/file",)


def test_s65_local_addresses_are_those_of_the_kernel(tmp_path: Path) -> None:
    trie = write(
        tmp_path,
        "fib_trie",
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.0\n        /24 link UNICAST\n     |-- 192.0.2.2\n"
        "        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n",
    )
    inet6 = write(tmp_path, "if_inet6", "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n\n")

    assert local_addresses(trie, inet6) == {"127.0.0.1", "::1", "192.0.2.2", "fe80::fc:ff:fe00:1"}
    assert local_addresses(str(tmp_path / "a"), str(tmp_path / "b")) == {"127.0.0.1", "::1"}


def test_s65_the_address_that_this_host_would_send_from_is_local() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("127.0.0.1", 9))

        assert probe.getsockname()[0] in local_addresses()


CHANGES: dict[str, Callable[[Path], None]] = {
    "written": lambda file: file.write_text("other", encoding="ascii"),
    "same size": lambda file: file.write_text("txet", encoding="ascii"),
    "replaced by rename": lambda file: write(file.parent, "new", "text") and os.replace(file.parent / "new", file),  # noqa: PTH105
    "removed": lambda file: file.unlink(),
    "turned into a link": lambda file: (file.unlink(), file.symlink_to(write(file.parent, "target", "text"))),
}


def watch_for(runner: asyncio.Runner, file: Path, change: Callable[[Path], None]) -> int:
    """How often a change was told within a while after one change."""
    told = 0

    def changed() -> None:
        nonlocal told
        told += 1

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(PollingWatcher(0.01).watch(str(file), changed))
            await asyncio.sleep(0.1)
            assert told == 0
            change(file)
            await asyncio.sleep(0.2)
            task.cancel()

    runner.run(work())
    return told


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_file_is_told(tmp_path: Path, loop: str, name: str) -> None:
    file = tmp_path / "file"
    file.write_text("text", encoding="ascii")
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        told = watch_for(runner, file, CHANGES[name])

    assert told == 1 or (told == 2 and name == "turned into a link")  # it may be seen while it is away


def test_a_file_that_comes_later_and_a_link_that_is_turned_are_told(tmp_path: Path) -> None:
    later = tmp_path / "folder" / "file"
    link = tmp_path / "link"
    link.symlink_to(write(tmp_path, "one", "1"))
    write(tmp_path, "two", "2")

    def come(file: Path) -> None:
        file.parent.mkdir()
        file.write_text("text", encoding="ascii")

    def turn(file: Path) -> None:
        (tmp_path / "link2").symlink_to(tmp_path / "two")
        (tmp_path / "link2").replace(file)

    with asyncio.Runner() as runner:
        assert watch_for(runner, later, come) >= 1
        assert watch_for(runner, link, turn) == 1


def test_what_is_to_be_awaited_is_awaited(tmp_path: Path) -> None:
    async def work() -> None:
        done = asyncio.Event()

        async def changed() -> None:
            await asyncio.sleep(0)
            done.set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(PollingWatcher(0.01).watch(str(tmp_path / "file"), changed))
            await asyncio.sleep(0.05)
            write(tmp_path, "file", "text")
            await asyncio.wait_for(done.wait(), 5)
            task.cancel()

        assert done.is_set()

    asyncio.run(work())
