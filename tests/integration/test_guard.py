"""The guard on real files (S77: fights over resolv.conf; S79: undone at the end): links, bind mounts, others who write, and its own death."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes.running import FAKES, TWO_ORDERS, Bridge, until
from fakes.upstream import StubUpstream
from nacosdns import guarding
from nacosdns.cli import parser
from nacosdns.config import Cache, Config, Forward, Host, Log, PolicySection, Server
from nacosdns.core.resolvtext import FIGHT_WRITES, MARK, decode_saved, servers_of
from nacosdns.edge import hostfacts, resolvconf, resolvfile
from nacosdns.edge.standing import strays
from nacosdns.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, owners, port 53")

OURS = f"127.60.{os.getpid() >> 8 & 255}.{os.getpid() & 127 | 1}"
"""An address of loopback that no other process has port 53 of."""
DHCP = "search corp.example\nnameserver 192.0.2.1\noptions ndots:2\n"
STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\n"


class Heard:
    """A log that is kept."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, object]]] = []

    def __getattr__(self, level: str):
        return lambda event, **facts: self.events.append((level, event, facts))

    def named(self, event: str) -> list[dict[str, object]]:
        return [facts for _, name, facts in self.events if name == event]


class Place:
    """A host of files: a resolv.conf, a state directory, and a guard for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etc = folder / "etc"
        self.state = folder / "state"
        self.etc.mkdir()
        self.state.mkdir()
        self.file = self.etc / "resolv.conf"
        self.saved = self.state / resolvconf.SAVED_NAME
        self.log = Heard()
        self.answers = True
        self.asked: list[tuple[str, int]] = []

    def config(self, **host: object) -> Config:
        return Config(
            server=Server(listen=("127.0.0.1:53", f"{OURS}:5353")),
            cache=Cache(dir=str(self.state)),
            host=Host(resolv_conf=str(self.file), **{"nodes": ("10.0.0.5",), **host}),
        )

    def guard(self, **host: object) -> guarding.Guard:
        async def answers(address: str, port: int) -> bool:
            self.asked.append((address, port))
            return self.answers

        return guarding.Guard(self.config(**host), self.log, answers)

    def look(self, **host: object) -> str:
        """One look of a guard that is made for it."""
        guard = self.guard(**host)
        try:
            return asyncio.run(guard.look())
        finally:
            guard.close()

    def servers(self) -> list[str]:
        return list(servers_of(self.file.read_bytes()))

    def restore(self) -> str:
        guard = self.guard()
        try:
            return guard.restore()
        finally:
            guard.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_our_address_is_put_first_and_the_nodes_behind_it(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")

    assert place.look() == resolvfile.RENAMED
    assert place.servers() == ["127.0.0.1", "10.0.0.5"]
    assert "search corp.example\noptions ndots:2 timeout:1 attempts:2\n" in place.file.read_text(encoding="ascii")
    assert place.look() == ""
    assert [file.name for file in place.etc.iterdir()] == ["resolv.conf"]
    assert [file.name for file in place.state.iterdir()] == [resolvconf.SAVED_NAME]


def test_what_stood_there_names_the_upstreams_and_comes_back(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    place.look()
    found = resolvconf.choose((str(place.saved), str(place.file)), lambda server: server == "127.0.0.1")

    assert found.nameservers == ("192.0.2.1",)
    assert found.warnings == ()
    assert "what it was before" in place.restore()
    assert place.file.read_text(encoding="ascii") == DHCP
    assert not place.saved.exists()
    assert "nothing to restore" in place.restore()


def test_an_address_that_does_not_answer_is_never_put_in(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    place.answers = False

    assert place.look() == "no answer"
    assert place.file.read_text(encoding="ascii") == DHCP
    assert not place.saved.exists()
    assert place.asked == [("127.0.0.1", 53)]
    assert len(place.log.named("guard.waits")) == 1


@needs_root
def test_owner_mode_and_label_stay(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    os.chown(place.file, 12, 34)
    place.file.chmod(0o664)
    try:
        os.setxattr(place.file, resolvfile.LABEL, b"system_u:object_r:net_conf_t:s0\0")
        label = True
    except OSError:
        label = False  # a file system without labels
    place.look()
    facts = place.file.stat()

    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (12, 34, 0o664)
    assert not label or os.getxattr(place.file, resolvfile.LABEL) == b"system_u:object_r:net_conf_t:s0\0"
    place.restore()
    assert (place.file.stat().st_uid, stat.S_IMODE(place.file.stat().st_mode)) == (12, 0o664)


@pytest.mark.parametrize("target", ["../run/stub-resolv.conf", "../run/nowhere"])
def test_a_link_is_replaced_never_written_through_and_comes_back(place: Place, target: str) -> None:
    stub = place.folder / "run" / "stub-resolv.conf"
    stub.parent.mkdir()
    stub.write_text(STUB, encoding="ascii")
    place.file.symlink_to(target)

    assert place.look() == resolvfile.RENAMED
    assert not place.file.is_symlink()
    assert place.servers() == ["127.0.0.1", "10.0.0.5"]
    assert stub.read_text(encoding="ascii") == STUB
    place.restore()
    assert str(place.file.readlink()) == target
    assert stub.read_text(encoding="ascii") == STUB


def test_what_the_owner_of_the_link_writes_later_becomes_the_copy(place: Place) -> None:
    stub = place.folder / "stub"
    stub.write_text(STUB, encoding="ascii")
    place.file.symlink_to(stub)
    place.look()
    stub.write_text(DHCP, encoding="ascii")

    assert place.look() == ""
    assert decode_saved(place.saved.read_bytes()).text == DHCP.encode()
    place.restore()
    assert place.file.readlink() == stub


def test_a_missing_file_is_made_and_goes_again(place: Place) -> None:
    assert place.look() == resolvfile.RENAMED
    assert place.servers() == ["127.0.0.1", "10.0.0.5"]
    place.restore()
    assert not place.file.exists()


def test_what_somebody_else_wrote_meanwhile_is_not_undone(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    place.look()
    place.file.write_text(STUB, encoding="ascii")

    assert "left as it is" in place.restore()
    assert place.file.read_text(encoding="ascii") == STUB
    assert not place.saved.exists()


def test_a_disk_that_takes_half_a_text_changes_nothing(place: Place) -> None:
    """The first write of a full disk says how little it took; only the next one says why."""
    long = DHCP + "# " + "x" * 2000 + "\nsearch " + "corp.example " * 100 + "\n"
    place.file.write_text(long, encoding="ascii")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        said = place.look()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert "cannot be written" in said
    assert place.file.read_text(encoding="ascii") == long
    assert not place.saved.exists()
    assert list(place.etc.iterdir()) == [place.file]


def test_a_change_between_the_look_and_the_write_is_seen(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    before = resolvfile.look(place.file)
    place.file.write_text(STUB, encoding="ascii")

    assert resolvfile.put(place.file, b"nameserver 127.0.0.1\n", before) == resolvfile.CHANGED
    assert resolvfile._overwrite(place.file, b"nameserver 127.0.0.1\n", before) == resolvfile.CHANGED
    assert place.file.read_text(encoding="ascii") == STUB


def test_a_second_guard_is_refused(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    first = place.guard()
    asyncio.run(first.look())

    assert "another guard" in place.look()
    with pytest.raises(HostError, match="another guard"):
        place.restore()
    first.close()
    assert place.look() == ""


def test_without_a_copy_nothing_is_changed(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    place.saved.mkdir()

    assert "remove it" in place.look()
    assert place.file.read_text(encoding="ascii") == DHCP


@needs_root
@pytest.mark.parametrize("how", ["a link", "of another user"])
def test_a_copy_that_another_user_could_have_written_is_not_believed(place: Place, how: str) -> None:
    """The state directory belongs to the user of the bridge, and the guard is root."""
    place.file.write_text(DHCP, encoding="ascii")
    secret = place.folder / "secret"
    secret.write_text("root:x:0:0", encoding="ascii")
    if how == "a link":
        place.saved.symlink_to(secret)
    else:
        place.saved.write_text("nameserver 203.0.113.66\n", encoding="ascii")
        os.chown(place.saved, 12345, 12345)

    assert "remove it" in place.look()
    assert place.file.read_text(encoding="ascii") == DHCP
    with pytest.raises(HostError, match="remove it"):
        place.restore()
    assert secret.read_text(encoding="ascii") == "root:x:0:0"


@needs_root
def test_an_immutable_file_is_said_with_the_command_that_ends_it(place: Place) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    if subprocess.run(["chattr", "+i", str(place.file)], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        said = place.look()
        again = place.guard()
        asyncio.run(again.look())
        asyncio.run(again.look())
        again.close()
    finally:
        subprocess.run(["chattr", "-i", str(place.file)], check=True)

    assert f"chattr -i {place.file}" in said
    assert place.file.read_text(encoding="ascii") == DHCP
    assert len(place.log.named("guard.refused")) == 2  # once a guard, not once a look
    assert place.look() == resolvfile.RENAMED


def test_who_fights_for_the_file_gets_it_for_a_while_and_it_is_said(place: Place) -> None:
    guard = place.guard()
    did = []
    for _ in range(FIGHT_WRITES + 3):
        place.file.write_text(DHCP, encoding="ascii")
        did.append(asyncio.run(guard.look()))
    guard.close()

    assert did == [resolvfile.RENAMED] * FIGHT_WRITES + ["paused"] * 3
    assert place.file.read_text(encoding="ascii") == DHCP
    (fought,) = place.log.named("guard.fought")
    assert "again and again" in str(fought["reason"])
    assert time.time() - decode_saved(place.saved.read_bytes()).fought_at < 60


@pytest.mark.parametrize(("writers", "said"), [((("dhclient", 812),), "dhclient (pid 812)"), ((), "`nacosdns doctor`")])
def test_a_fight_names_the_programs_that_may_be_the_other_side(place: Place, monkeypatch, writers, said: str) -> None:
    monkeypatch.setattr(hostfacts, "writers", lambda _tree: writers)
    guard = place.guard()
    for _ in range(FIGHT_WRITES):
        place.file.write_text(DHCP, encoding="ascii")
        asyncio.run(guard.look())
    guard.close()
    (fought,) = place.log.named("guard.fought")

    assert said in str(fought["running"])


def test_a_host_without_an_address_of_ours_on_port_53_is_refused(place: Place) -> None:
    config = Config(server=Server(listen=("127.0.0.1:5353",)), cache=Cache(dir=str(place.state)))

    with pytest.raises(HostError, match="port 53"):
        guarding.place(config)


@pytest.mark.parametrize(
    ("listen", "own"),
    [
        (("10.0.0.9:53", "127.0.0.1:53"), "127.0.0.1"),
        (("10.0.0.9:53",), "10.0.0.9"),
        (("0.0.0.0:53", "[::]:53"), "127.0.0.1"),
        (("[::1]:53",), "::1"),
        (("lo:53",), "127.0.0.1"),
        (("127.0.0.1:5353",), ""),
    ],
)
def test_our_own_address_is_one_that_this_host_reaches_on_port_53(listen: tuple[str, ...], own: str) -> None:
    assert guarding.own_address(Config(server=Server(listen=listen))) == own


# In a mount namespace of its own

MOUNTED = """
import asyncio, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from integration.test_guard import Place, DHCP, STUB
from fakes.running import until
from fakes.upstream import StubUpstream
from nacosdns.core.resolvtext import servers_of
from nacosdns.edge import resolvfile
place = Place(Path({folder!r}))
def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)
{body}
"""


def mounted(folder: Path, body: str, *more: str) -> str:
    """Runs this body where mounts are its own; what it printed."""
    tests = str(Path(__file__).parents[1])
    code = MOUNTED.format(tests=tests, folder=str(folder), body=textwrap.dedent(body))
    paths = os.pathsep.join([tests, *filter(None, sys.path)])
    done = subprocess.run(
        ["unshare", "--mount", *more, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
def test_a_bind_mounted_file_is_written_in_place_and_given_back(tmp_path: Path) -> None:
    """As a container's: a rename over a mount point is refused by the kernel."""
    said = mounted(
        tmp_path,
        """
        real = place.folder / "real"
        real.write_text(DHCP)
        real.chmod(0o640)
        place.file.touch()
        mount("--bind", real, place.file)
        number = place.file.stat().st_ino
        print(place.look(), place.look() or "nothing", place.servers())
        print(place.file.stat().st_ino == number, real.read_text() == place.file.read_text(), oct(real.stat().st_mode))
        print(place.restore(), real.read_text() == DHCP, os.listdir(place.etc))
        """,
    )

    lines = said.splitlines()
    assert lines[0] == "written in place nothing ['127.0.0.1', '10.0.0.5']"
    assert lines[1] == "True True 0o100640"
    assert lines[2].endswith("is what it was before True ['resolv.conf']")


@needs_root
def test_a_link_in_a_folder_that_cannot_be_written_is_written_through_but_not_into_a_managers_file(
    tmp_path: Path,
) -> None:
    said = mounted(
        tmp_path,
        """
        behind = place.folder / "var" / "resolv.conf"
        behind.parent.mkdir()
        behind.write_text(DHCP)
        place.file.symlink_to(behind)
        mount("--bind", place.etc, place.etc)
        mount("-o", "remount,bind,ro", place.etc)
        print(place.look(), place.file.is_symlink(), place.servers())
        print(place.restore(), behind.read_text() == DHCP)
        resolvfile.MANAGED = (str(behind.parent),)
        print(place.look())
        print(behind.read_text() == DHCP)
        """,
    )

    lines = said.splitlines()
    assert lines[0] == "written in place True ['127.0.0.1', '10.0.0.5']"
    assert lines[1].endswith("is what it was before True")
    assert "which another program writes" in lines[2]
    assert lines[3] == "True"


@needs_root
def test_a_read_only_host_is_said(tmp_path: Path) -> None:
    said = mounted(
        tmp_path,
        """
        place.file.write_text(DHCP)
        mount("--bind", place.etc, place.etc)
        mount("-o", "remount,bind,ro", place.etc)
        print(place.look())
        """,
    )

    assert "the file system is read-only" in said


@needs_root
def test_a_full_disk_leaves_the_file_whole(tmp_path: Path) -> None:
    said = mounted(
        tmp_path,
        """
        mount("-t", "tmpfs", "-o", "size=64k,nr_inodes=64", "tmpfs", place.etc)
        place.file.write_text(DHCP)
        with open(place.etc / "big", "wb", buffering=0) as big:
            try:
                while big.write(bytes(4096)):
                    pass
            except OSError:
                pass
        print(place.look(), place.servers())
        print(place.restore(), place.file.read_text() == DHCP)
        """,
    )

    lines = said.splitlines()
    assert lines[0] == "written in place ['127.0.0.1', '10.0.0.5']"
    assert lines[1].endswith("is what it was before True")


WHOLE = """
for words in ("link set lo up", "link add eth0 type veth peer name eth1", "addr add 10.99.0.1/24 dev eth0", "link set eth0 up"):
    subprocess.run(["ip", *words.split()], check=True)  # getent asks for IPv4 only where a network has it
file = place.folder / "resolv.conf"
file.write_text("search corp.example\\nnameserver 127.70.0.1\\n")
mount("--bind", file, "/etc/resolv.conf")
config = place.folder / "nacosdns.toml"
config.write_text(
    '[server]\\nlisten = ["127.0.0.1:53"]\\nuser = ""\\n[nacos]\\nservers = []\\n[web]\\nlisten = ""\\n'
    f'[host]\\nnodes = ["127.71.0.1"]\\n[cache]\\ndir = "{place.state}"\\n[[static]]\\nname = "orders"\\ninstances = [{{ ip = "10.0.0.1", port = 80 }}]\\n'
)

def found(name):
    done = subprocess.run(["getent", "ahostsv4", name], capture_output=True, text=True)
    return done.stdout.split()[:1]

def wait(condition):
    until(condition, 30, "it")

def nacosdns(*words):
    return subprocess.Popen([sys.executable, "-m", "nacosdns.cli", *words, "-c", str(config)], stderr=subprocess.DEVNULL)

with StubUpstream("127.70.0.1", 53) as site, StubUpstream("127.71.0.1", 53) as node:
    node.answer("orders.nacos", "A", "10.0.0.2")
    site.answer("www.example.com", "A", "198.51.100.7")
    print("before", found("orders.nacos"), found("www.example.com"))
    bridge, guard = nacosdns("run"), nacosdns("resolvconf", "guard", "--restore")
    try:
        wait(lambda: found("orders.nacos"))
        print("guarded", found("orders.nacos"), found("www.example.com"), servers_of(file.read_bytes()))
        file.write_text("nameserver 127.70.0.1\\n")
        wait(lambda: found("orders.nacos"))
        print("again", found("orders.nacos"), found("www.example.com"))
        bridge.kill()
        bridge.wait()
        wait(lambda: found("orders.nacos") == ["10.0.0.2"])
        print("dead", found("orders.nacos"))
        guard.terminate()
        guard.wait(10)
        print("after", found("orders.nacos"), found("www.example.com"), file.read_text().split())
    finally:
        for process in (guard, bridge):
            process.kill()
            process.wait()
"""


@needs_root
@pytest.mark.skipif(not shutil.which("getent"), reason="needs glibc's getent")
def test_programs_of_a_host_find_services_and_outside_names_while_the_guard_runs(tmp_path: Path) -> None:
    """The whole way of a host of its own, as glibc goes it: the resolver of the site says NXDOMAIN to our names."""
    lines = mounted(tmp_path, WHOLE, "--net").splitlines()

    assert lines == [
        "before [] ['198.51.100.7']",
        "guarded ['10.0.0.1'] ['198.51.100.7'] ('127.0.0.1', '127.71.0.1')",
        "again ['10.0.0.1'] ['198.51.100.7']",
        "dead ['10.0.0.2']",
        "after [] ['198.51.100.7'] ['nameserver', '127.70.0.1']",
    ]


# As a process


def program(place: Place, *words: str, nodes: str = "[]", more: str = "") -> list[str]:
    """A command line of nacosdns for this place; its own address is ``OURS``."""
    file = place.folder / "nacosdns.toml"
    file.write_text(
        f'[server]\nlisten = ["{OURS}:53"]\n[nacos]\nservers = []\n[cache]\ndir = "{place.state}"\n'
        f'[host]\nresolv_conf = "{place.file}"\nnodes = {nodes}\n{more}',
        encoding="utf-8",
    )
    return [sys.executable, "-m", "nacosdns.cli", "resolvconf", *words, "-c", str(file)]


@pytest.fixture
def answering() -> Iterator[StubUpstream]:
    """Somebody answers at our address."""
    with StubUpstream(OURS, 53) as stub:
        yield stub


@pytest.fixture
def started(place: Place) -> Iterator[object]:
    """Starts guards and ends them."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*words: str, more: str = "") -> subprocess.Popen[bytes]:
        log = place.folder / f"guard{len(running)}.log"
        with log.open("wb") as file:
            running.append(subprocess.Popen(program(place, "guard", *words, more=more), stderr=file))
        until(lambda: "guard.watches" in log.read_text(encoding="utf-8"), 15, "the first look")
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def ours(place: Place) -> bool:
    return place.file.is_file() and place.servers()[:1] == [OURS]


@needs_root
def test_a_signal_that_nobody_means_for_the_guard_does_not_end_it(place: Place, answering, started) -> None:
    guard = started()
    for number in (*strays(), signal.SIGUSR2):
        guard.send_signal(number)
    place.file.write_text(DHCP, encoding="ascii")

    until(lambda: ours(place), 10, "our address")
    assert guard.poll() is None


@needs_root
def test_our_address_is_back_within_ten_seconds_whoever_took_it_out(place: Place, answering, started) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    started()
    until(lambda: ours(place), 10, "our address")
    lease = place.etc / "resolv.conf.dhclient"
    lease.write_text("nameserver 192.0.2.7\n", encoding="ascii")
    lease.replace(place.file)
    until(lambda: ours(place), 10, "our address after a lease")
    assert servers_of(place.saved.read_bytes()) == ("192.0.2.7",)
    place.file.unlink()

    until(lambda: ours(place), 10, "our address after the file was removed")
    place.file.unlink()
    place.file.symlink_to(place.folder / "stub")
    until(lambda: ours(place) and not place.file.is_symlink(), 10, "our address after a link")


@needs_root
def test_told_to_stop_it_leaves_the_file_and_gives_it_back_when_it_is_asked_to(
    place: Place, answering, started
) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    for words, more, back in (
        ((), "", False),
        (("--restore",), "", True),
        ((), "restore_on_stop = true\n", True),
    ):
        process = started(*words, more=more)
        until(lambda: ours(place), 10, "our address")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert (place.file.read_text(encoding="ascii") == DHCP) is back


LOOP = """
import asyncio, pathlib, sys
from nacosdns import guarding
from nacosdns.config_load import load
from nacosdns.edge import resolvfile

class Log:
    def __getattr__(self, level):
        return lambda event, **facts: None

async def yes(host, port):
    return True

config = load(sys.argv[1], {})
path = pathlib.Path(config.host.resolv_conf)
if sys.argv[2] == "in place":
    rename = pathlib.Path.rename
    def refuse(self, to):
        if to == path:
            raise OSError(16, "busy")
        return rename(self, to)
    pathlib.Path.rename = refuse
guard = guarding.Guard(config, Log(), yes)
guard._fights.wrote = lambda now: 0.0
print("up", flush=True)
while True:
    asyncio.run(guard.look())
    resolvfile.put(path, sys.argv[3].encode(), resolvfile.look(path))
"""
"""A guard without pauses, against somebody who writes at once what stood there before."""


def odd_lines(place: Place) -> list[str]:
    """What a reader finds now and should not; an empty file is odd too."""
    good = {*DHCP.splitlines(), f"nameserver {OURS}", "options ndots:2 timeout:1 attempts:2", ""}
    lines = place.file.read_text(encoding="ascii").splitlines()
    odd = [line for line in lines if line not in good and not line.startswith(MARK.decode())]
    return odd if any(line.startswith("nameserver") for line in lines) else [*odd, "no server"]


@needs_root
@pytest.mark.parametrize("how", ["renamed", "in place"])
def test_killed_at_any_moment_a_whole_file_stays_and_the_next_guard_goes_on(place: Place, how: str) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    program(place)
    odd: list[str] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            odd.extend(odd_lines(place))

    readers = [threading.Thread(target=read)] if how == "renamed" else []  # in place a reader may meet the write itself
    for reader in readers:
        reader.start()
    rng = random.Random(7)
    try:
        for _ in range(12):
            words = [sys.executable, "-c", LOOP, str(place.folder / "nacosdns.toml"), how, DHCP]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            time.sleep(rng.uniform(0.0, 0.08))
            process.kill()
            process.communicate()
            odd += odd_lines(place)
            copy = decode_saved(place.saved.read_bytes()).text if place.saved.exists() else b""
            assert DHCP.encode() in (place.file.read_bytes(), copy)
    finally:
        over.set()
        for reader in readers:
            reader.join()

    assert odd == []
    assert subprocess.run(program(place, "restore"), check=False).returncode == 0
    assert place.file.read_text(encoding="ascii") == DHCP
    assert not place.saved.exists()


@needs_root
def test_show_says_what_is_there_and_what_is_wanted(place: Place, answering, started) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    before = subprocess.run(program(place, "show"), capture_output=True, text=True, check=False)
    started()
    until(lambda: ours(place), 10, "our address")
    after = subprocess.run(program(place, "show", "--json"), capture_output=True, text=True, check=False)

    assert before.returncode == 1
    assert f"  nameserver {OURS}" in before.stdout
    assert after.returncode == 0
    assert json.loads(after.stdout)["right"] is True
    assert json.loads(after.stdout)["saved"] == str(place.saved)


def test_commands_that_cannot_be_done_are_one_line(place: Place) -> None:
    file = place.folder / "nacosdns.toml"
    file.write_text(f'[server]\nlisten = ["127.0.0.1:5353"]\n[cache]\ndir = "{place.state}"\n', encoding="utf-8")
    for verb in ("show", "guard"):
        done = subprocess.run(
            [sys.executable, "-m", "nacosdns.cli", "resolvconf", verb, "-c", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "port 53" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = Path(__file__).parents[2] / "deploy" / "systemd" / "nacosdns-guard.service"
    text = unit.read_text(encoding="utf-8")
    command = next(line for line in text.splitlines() if line.startswith("ExecStart=")).partition(" ")[2].split()
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/nacosdns/bin/python", sys.executable), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)

    assert command[:3] == ["-P", "-m", "nacosdns.cli"]
    assert parser().parse_args(command[3:]).command
    assert (done.returncode, done.stderr) == (0, "")


@needs_root
def test_a_guard_that_outlived_its_supervisors_code_is_buried_and_another_child_is_not() -> None:
    code = "from nacosdns.edge import standing; import sys; standing.call_me(sys.argv[1])"
    named, other = (subprocess.Popen([sys.executable, "-c", code, name]) for name in (guarding.NAME, "nacosdns-front0"))
    for process in (named, other):
        until(
            lambda process=process: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
    guarding._bury()

    assert not Path(f"/proc/{named.pid}").exists()
    assert [process.wait(5) for process in (named, other)] == [0, 0]


@needs_root
def test_the_supervisors_guard_lives_as_long_as_it_is_wanted_and_dies_with_it(place: Place, answering) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    wanted = Config(
        server=Server(listen=(f"{OURS}:53",)),
        cache=Cache(dir=str(place.state)),
        forward=Forward(),
        log=Log(),
        host=Host(guard=True, restore_on_stop=True, resolv_conf=str(place.file)),
    )

    async def live() -> list[int]:
        keeping = asyncio.create_task(guarding.keep(lambda: wanted, place.log))
        async with asyncio.timeout(20):
            while not ours(place):
                await asyncio.sleep(0.05)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return [int(str(facts["pid"])) for facts in place.log.named("guard.started")]

    (pid,) = asyncio.run(live())

    assert place.file.read_text(encoding="ascii") == DHCP  # told to stop, it gave the file back
    assert not Path(f"/proc/{pid}").exists()


def supervised(place: Place, **more: object) -> Config:
    return Config(
        server=Server(listen=(f"{OURS}:53",)),
        cache=Cache(dir=str(place.state)),
        host=Host(guard=True, restore_on_stop=True, resolv_conf=str(place.file)),
        **more,
    )


def test_a_reload_that_does_not_concern_the_guard_leaves_it_and_the_file_alone(place: Place) -> None:
    config = supervised(place)
    elsewhere = msgspec.structs.replace(config, host=Host(guard=True, resolv_conf="/etc/resolv.conf"))
    louder = msgspec.structs.replace(config, log=Log(level="debug"))
    wider = msgspec.structs.replace(config, server=Server(listen=("127.0.0.1:53",)))

    assert guarding.concern(config) == guarding.concern(supervised(place, policy=PolicySection(ttl_s=5)))
    assert len({guarding.concern(one) for one in (config, elsewhere, louder, wider)}) == 4


def test_a_guard_that_finds_no_descriptor_is_started_later(place: Place) -> None:
    config = supervised(place)

    async def live() -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            await guarding._one_life(config, lambda: config, place.log)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    asyncio.run(live())

    assert len(place.log.named("guard.not_started")) == 1


@needs_root
def test_a_bridge_that_is_told_to_guard_does_and_gives_the_file_back_when_it_stops(
    place: Place, tmp_path: Path
) -> None:
    place.file.write_text(DHCP, encoding="ascii")
    text = f'{TWO_ORDERS}[host]\nguard = true\nrestore_on_stop = true\nresolv_conf = "{place.file}"\n'
    running = Bridge(tmp_path, text=text, modules={}, listen=f'"{OURS}:53"')
    try:
        running.up()
        until(lambda: ours(place), 20, "our address")
        running.signal(signal.SIGTERM)

        assert running.wait() == 0
        assert place.file.read_text(encoding="ascii") == DHCP
    finally:
        running.close()


@needs_root
def test_the_file_is_given_back_before_anybody_stops_to_answer(place: Place, tmp_path: Path) -> None:
    """On a host with no other server every program would be without names until then."""
    place.file.write_text(DHCP, encoding="ascii")
    text = f'[host]\nguard = true\nrestore_on_stop = true\nresolv_conf = "{place.file}"\n'
    modules = FAKES | {"keeper": "fakes.child_deaf"}
    running = Bridge(tmp_path, text=text, modules=modules, listen=f'"{OURS}:53"')
    try:
        running.up()
        until(lambda: ours(place), 20, "our address")
        running.signal(signal.SIGTERM)
        until(lambda: running.said("fake.drained"), what="the end of the first child")

        assert place.file.read_text(encoding="ascii") == DHCP
        assert running.wait() == 0
    finally:
        running.close()
