"""`nacosdns doctor` on hosts made of files, and on this one (S12, S47, S77, S78)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes import host_tree
from fakes.host_tree import bound, process
from fakes.nacos_server import FakeNacos
from fakes.running import Bridge, until
from fakes.upstream import StubUpstream
from nacosdns import doctoring
from nacosdns.config import Cache, Config, Host, Nacos, Server, ZoneSection
from nacosdns.core import doctor
from nacosdns.core.doctor_disk import judge as judge_disk
from nacosdns.core.facts import Facts, Setting
from nacosdns.core.resolvtext import Saved, encode_saved
from nacosdns.edge import hostfacts, hostprobes, resolvfile
from nacosdns.edge.hostfacts import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: port 53, flags of files")
STUB_LINK = "-> ../run/systemd/resolve/stub-resolv.conf"
STUB = "# This file is managed by man:systemd-resolved(8).\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n"
OURS = "127.0.0.1"
NODE, CORPORATE, DEAD = (f"127.{number}.{os.getpid() >> 8 & 255}.{os.getpid() & 127 | 1}" for number in (61, 62, 63))
"""Addresses of loopback that no other process has port 53 of."""
NOWHERE = Path("/nowhere/control.sock")
JAVA = "usr/lib/jvm/java-17/conf/security/java.security"


@pytest.fixture(scope="module")
def resolvers() -> Iterator[None]:
    """Two resolvers: a node that knows our zone, and one of the site that does not. Nobody is at ``DEAD``."""
    with StubUpstream(NODE, 53) as node, StubUpstream(CORPORATE, 53):
        node.answer("nacos", "SOA", "ns.nacos. admin.nacos. 1 2 3 4 5")
        yield


@pytest.fixture(autouse=True)
def nobody_outside(monkeypatch) -> None:
    """Upstreams that are not on this host are not asked: an address of the documentation stands for one that is good."""
    asked = hostprobes.root_verdict

    async def only_loopback(server: str, port: int) -> str:
        return await asked(server, port) if server.startswith("127.") else "NOERROR"

    monkeypatch.setattr(hostprobes, "root_verdict", only_loopback)


class Report:
    """What the doctor says of a host."""

    def __init__(self, findings: tuple[doctor.Finding, ...]) -> None:
        self.findings = findings

    def __getitem__(self, name: str) -> doctor.Finding:
        found = [finding for finding in self.findings if finding.id == name]
        assert found, f"no {name} in {[finding.id for finding in self.findings]}"
        return found[0]

    def wrong(self, *rooms: str) -> list[str]:
        """The ids of what is not good, of these rooms only."""
        bad = [finding.id for finding in self.findings if finding.severity.value != "ok"]
        return [name for name in bad if not rooms or name.partition(".")[0] in rooms]


def examine(root: Path, *, bare: bool = False, config: Config | None = None) -> Report:
    state = root / "state"
    state.mkdir(exist_ok=True)
    config = config or Config(
        nacos=Nacos(servers=()),
        cache=Cache(dir="/state"),
        zones=(ZoneSection(name="nacos.", bare_names=bare),),
        host=Host(nodes=(NODE,)),
    )
    began = time.monotonic()
    facts = asyncio.run(doctoring.examine(config, "", Tree(str(root)), NOWHERE))
    assert time.monotonic() - began < doctoring.TOTAL_S + 3.0
    return Report(doctor.judge(facts, doctoring.setting(config)))


RESOLV = [
    ("good", {}, []),
    ("missing", {"etc/resolv.conf": None}, ["resolv.file"]),
    ("empty", {"etc/resolv.conf": ""}, ["resolv.file"]),
    ("only comments", {"etc/resolv.conf": "# nothing\n"}, ["resolv.file"]),
    (
        "stub of resolved",
        {"etc/resolv.conf": STUB_LINK, "run/systemd/resolve/stub-resolv.conf": STUB},
        ["resolv.ours", "resolv.stub"],
    ),
    ("link to nowhere", {"etc/resolv.conf": "-> ../run/nowhere"}, ["resolv.file"]),
    ("agent absent", {"etc/resolv.conf": f"nameserver {CORPORATE}\n"}, ["resolv.ours"]),
    ("agent second", {"etc/resolv.conf": f"nameserver {CORPORATE}\nnameserver {OURS}\n"}, ["resolv.ours"]),
    ("node behind", {"etc/resolv.conf": f"nameserver {OURS}\nnameserver {NODE}\noptions timeout:1\n"}, []),
    ("node only", {"etc/resolv.conf": f"nameserver {NODE}\n"}, []),
    (
        "a fallback without our zone",
        {"etc/resolv.conf": f"nameserver {OURS}\nnameserver {CORPORATE}\noptions timeout:1\n"},
        ["resolv.fallback"],
    ),
    (
        "a dead fallback",
        {"etc/resolv.conf": f"nameserver {OURS}\nnameserver {DEAD}\noptions timeout:1\n"},
        ["resolv.fallback"],
    ),
    ("slow fail-over", {"etc/resolv.conf": f"nameserver {OURS}\nnameserver {NODE}\n"}, ["resolv.timeout"]),
    (
        "rotate",
        {"etc/resolv.conf": f"nameserver {OURS}\nnameserver {NODE}\noptions rotate timeout:1\n"},
        ["resolv.rotate"],
    ),
    (
        "four servers",
        {
            "etc/resolv.conf": f"nameserver {OURS}\n"
            + f"nameserver {NODE}\n" * 2
            + "nameserver 127.53.78.4\nnameserver 127.53.78.5\noptions timeout:1\n"
        },
        ["resolv.fallback", "resolv.servers"],
    ),
    (
        "agent fourth",
        {
            "etc/resolv.conf": f"nameserver {NODE}\nnameserver 127.53.78.4\nnameserver 127.53.78.5\nnameserver {OURS}\noptions timeout:1\n"
        },
        ["resolv.ours", "resolv.fallback", "resolv.fallback", "resolv.servers"],
    ),
    (
        "ndots:5",
        {"etc/resolv.conf": f"nameserver {OURS}\nsearch a.example b.example\noptions ndots:5\n"},
        ["resolv.ndots"],
    ),
    ("ndots without a list", {"etc/resolv.conf": f"nameserver {OURS}\noptions ndots:5\n"}, []),
    ("long search list", {"etc/resolv.conf": f"nameserver {OURS}\nsearch a.x b.x c.x d.x\n"}, ["resolv.search"]),
    ("spaces and windows line ends", {"etc/resolv.conf": f"nameserver   {OURS}  \r\noptions\ttimeout:1 \r\n"}, []),
    ("bad lines", {"etc/resolv.conf": f"nameserver localhost\nnameserver {OURS}\n"}, ["resolv.syntax"]),
    ("IPv6 only", {"etc/resolv.conf": "nameserver ::1\n"}, ["resolv.ours"]),
    (
        "written by NetworkManager",
        {"etc/resolv.conf": f"# Generated by NetworkManager\nnameserver {OURS}\n"},
        ["resolv.maker"],
    ),
    (
        "linked to resolvconf's",
        {"etc/resolv.conf": "-> /run/resolvconf/resolv.conf", "run/resolvconf/resolv.conf": f"nameserver {OURS}\n"},
        ["resolv.maker"],
    ),
]


@needs_root
@pytest.mark.parametrize(("files", "wrong"), [case[1:] for case in RESOLV], ids=[case[0] for case in RESOLV])
def test_s77_a_verdict_on_each_resolv_conf(
    tmp_path: Path, resolvers, files: dict[str, str | None], wrong: list[str]
) -> None:
    report = examine(host_tree.make(tmp_path, files))

    assert report.wrong("resolv") == wrong
    for finding in report.findings:
        assert finding.severity.value == "ok" or finding.todo, finding


@needs_root
def test_s77_a_fallback_that_ends_the_search_is_said_so(tmp_path: Path, resolvers) -> None:
    report = examine(host_tree.make(tmp_path, {"etc/resolv.conf": f"nameserver {OURS}\nnameserver {CORPORATE}\n"}))

    assert "NXDOMAIN" in report["resolv.fallback"].seen
    assert "ends the search" in report["resolv.fallback"].seen
    assert "host.nodes" in report["resolv.fallback"].todo


@needs_root
def test_s77_an_immutable_file_is_said_with_the_command(tmp_path: Path) -> None:
    root = host_tree.make(tmp_path, {"etc/resolv.conf": "nameserver 192.0.2.1\n"})
    file = root / "etc" / "resolv.conf"
    if subprocess.run(["chattr", "+i", str(file)], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        report = examine(root)
    finally:
        subprocess.run(["chattr", "-i", str(file)], check=True)

    assert report["resolv.immutable"].command == "chattr -i /etc/resolv.conf"


NSS = [
    ("files dns", "", []),
    ("files myhostname dns", "", []),
    ("files", "", ["nss.hosts"]),
    ("files mdns4_minimal [NOTFOUND=return] dns", "", []),
    ("files resolve [!UNAVAIL=return] dns", "", []),
    ("files resolve [!UNAVAIL=return] dns", "systemd-resolve", ["nss.resolve"]),
    ("files dns resolve", "systemd-resolve", []),
    ("files resolve", "", ["nss.resolve"]),
]


@pytest.mark.parametrize(("hosts", "running", "wrong"), NSS)
def test_the_order_of_nsswitch_decides_whether_we_are_asked(
    tmp_path: Path, hosts: str, running: str, wrong: list[str]
) -> None:
    files = {"etc/nsswitch.conf": f"passwd: files\nhosts:\t{hosts}  # comment\n"}
    report = examine(host_tree.make(tmp_path, files | (process(7, running) if running else {})))

    assert report.wrong("nss") == wrong


def test_without_nsswitch_libc_asks_dns(tmp_path: Path) -> None:
    assert examine(host_tree.make(tmp_path, {"etc/nsswitch.conf": None})).wrong("nss") == []


def test_s12_single_label_names_that_resolved_keeps_are_told_with_what_to_do(tmp_path: Path) -> None:
    files = {
        "etc/nsswitch.conf": "hosts: files resolve [!UNAVAIL=return] dns\n",
        "etc/resolv.conf": STUB_LINK,
        "run/systemd/resolve/stub-resolv.conf": STUB,
    }
    report = examine(host_tree.make(tmp_path, files), bare=True)

    assert "single-label names, so these will not reach the agent" in report["nss.resolve"].seen
    assert "dotted names only" in report["nss.resolve"].todo
    assert report["nss.resolve"].command.startswith("sed -i")
    assert doctor.is_wrong(report.findings)


def test_s12_where_nothing_is_in_the_way_both_forms_are_said_to_work(tmp_path: Path) -> None:
    seen = examine(host_tree.make(tmp_path, {}), bare=True)["nss.hosts"].seen

    assert "SERVICE.nacos. and single-label names reach" in seen


def test_the_command_for_nsswitch_does_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "nsswitch.conf"
    file.write_text("passwd: files\nhosts: files resolve [!UNAVAIL=return] dns\n", encoding="ascii")
    root = host_tree.make(
        tmp_path / "host",
        {"etc/nsswitch.conf": "hosts: files resolve [!UNAVAIL=return] dns", **process(7, "systemd-resolve")},
    )
    command = examine(root)["nss.resolve"].command.replace("/etc/nsswitch.conf", str(file))
    subprocess.run(command, shell=True, check=True)  # noqa: S602  # our own command, as its reader runs it

    assert file.read_text(encoding="ascii") == "passwd: files\nhosts: files dns\n"


def test_a_zone_below_local_is_taken_by_multicast_dns(tmp_path: Path) -> None:
    root = host_tree.make(tmp_path, {"etc/nsswitch.conf": "hosts: files mdns4_minimal [NOTFOUND=return] dns\n"})
    local = Config(nacos=Nacos(servers=()), cache=Cache(dir="/state"), zones=(ZoneSection(name="svc.local."),))

    assert examine(root, config=local).wrong("nss") == ["nss.mdns"]


@pytest.mark.parametrize(
    ("rows", "listen", "wrong"),
    [
        ((("127.0.0.1", 53, 11),), "127.0.0.1:53", True),
        ((("0.0.0.0", 53, 11),), "127.0.0.1:53", True),
        ((("127.0.0.53", 53, 11),), "127.0.0.1:53", False),
        ((("127.0.0.53", 53, 11),), "0.0.0.0:53", True),
        ((("127.0.0.1", 5353, 11),), "127.0.0.1:53", False),
        ((("127.0.0.1", 53, 11),), "127.0.0.1:5353", False),
    ],
)
def test_who_holds_port_53_is_named_when_it_is_in_our_way(tmp_path: Path, rows, listen: str, wrong: bool) -> None:
    files = {
        "proc/net/udp": bound(*rows),
        **process(321, "dnsmasq", sockets=(11,)),
        **process(9, "other", sockets=(99,)),
    }
    config = Config(server=Server(listen=(listen,)), nacos=Nacos(servers=()), cache=Cache(dir="/state"))
    report = examine(host_tree.make(tmp_path, files), config=config)

    assert bool(report.wrong("port")) is wrong
    if wrong:
        assert f"dnsmasq (pid 321) on {rows[0][0]}" in report["port.53"].seen


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_who_holds_another_port_of_listen_is_named_when_nothing_of_ours_runs(tmp_path: Path, address: str) -> None:
    files = {
        "proc/net/udp": bound((address, 25315, 11), ("127.0.0.1", 25316, 12)),
        **process(321, "python3", sockets=(11,)),
        **process(322, "other", sockets=(12,)),
    }
    config = Config(server=Server(listen=("127.0.0.1:25315",)), nacos=Nacos(servers=()), cache=Cache(dir="/state"))
    report = examine(host_tree.make(tmp_path, files), config=config)

    assert report["bridge.running"].seen == "127.0.0.1:25315 is held by python3 (pid 321)"
    assert not report.wrong("port")


def test_a_holder_by_tcp_or_ipv6_is_seen_and_one_that_cannot_be_seen_is_told(tmp_path: Path) -> None:
    six = bound(("127.0.0.1", 53, 12), state="0A").replace("0100007F", "00000000000000000000000001000000")
    files = {"proc/net/tcp": bound(("127.0.0.1", 53, 11), state="0A"), "proc/net/tcp6": six}
    holders = hostfacts.holders(Tree(str(host_tree.make(tmp_path, files))))

    assert [(holder.kind, holder.address, holder.pid) for holder in holders] == [
        ("tcp", "127.0.0.1", 0),
        ("tcp", "::1", 0),
    ]


def test_the_holder_of_a_port_of_this_host_is_found() -> None:
    with StubUpstream() as stub:
        port = int(stub.address.rpartition(":")[2])
        holders = hostfacts.holders(Tree(), port)

    assert {(holder.kind, holder.pid) for holder in holders} == {("udp", os.getpid()), ("tcp", os.getpid())}


@pytest.mark.parametrize(
    ("conf", "wrong"),
    [
        (None, True),
        ("enable-cache hosts yes\npositive-time-to-live hosts 60\n", True),
        ("\tenable-cache\thosts\tno\n", False),
    ],
)
def test_s47_nscd_is_told_when_it_keeps_host_names(tmp_path: Path, conf: str | None, wrong: bool) -> None:
    report = examine(host_tree.make(tmp_path, {"etc/nscd.conf": conf, **process(5, "nscd")}))

    assert bool(report.wrong("nscd")) is wrong
    assert "60 s" in report["nscd.running"].seen or conf is None or not wrong


JAVAS = [
    (("-jar", "a.jar"), None, "30 s", True),
    (("-Djava.security.manager", "-jar", "a.jar"), None, "for ever", True),
    (("-Dsun.net.inetaddr.ttl=1",), None, "1 s", False),
    (("-Dsun.net.inetaddr.ttl=60",), None, "60 s", True),
    (("-Dsun.net.inetaddr.ttl=1",), "networkaddress.cache.ttl=-1\n", "for ever", True),
    ((), "#networkaddress.cache.ttl=-1\nnetworkaddress.cache.ttl=5\n", "5 s", False),
    (("-Dnetworkaddress.cache.ttl=1",), None, "no effect", True),
]


@pytest.mark.parametrize(("words", "security", "seen", "wrong"), JAVAS)
def test_s47_how_long_a_running_java_keeps_addresses(
    tmp_path: Path, words, security: str | None, seen: str, wrong: bool
) -> None:
    files = {JAVA: security, **process(77, "java", *words, exe="/usr/lib/jvm/java-17/bin/java")}
    report = examine(host_tree.make(tmp_path, files))

    assert seen in report["java.ttl"].seen
    assert bool(report.wrong("java")) is wrong


def test_a_host_without_java_and_nscd_has_nothing_said_of_them(tmp_path: Path) -> None:
    report = examine(host_tree.make(tmp_path, {}))

    assert not [finding for finding in report.findings if finding.id.startswith(("java", "nscd"))]


CONTAINERS = [
    (
        "docker, 127.0.0.1 replaced",
        {".dockerenv": "", "etc/resolv.conf": "nameserver 127.53.78.2\n".replace("127.53.78.2", "8.8.8.8")},
        "in place of 127.0.0.1",
    ),
    (
        "docker, a network of its own",
        {".dockerenv": "", "etc/resolv.conf": "nameserver 127.0.0.11\noptions ndots:0\n"},
        "127.0.0.11",
    ),
    (
        "docker, the host's loopback",
        {".dockerenv": "", "etc/resolv.conf": "nameserver 127.0.0.9\n"},
        "is its own, not the host's",
    ),
    ("podman", {"run/.containerenv": "", "etc/resolv.conf": "nameserver 192.0.2.1\n"}, "podman"),
    ("a pod", {"run/secrets/kubernetes.io": "/", "etc/resolv.conf": "nameserver 192.0.2.10\n"}, "cluster's DNS"),
    (
        "another",
        {"proc/1/environ": "PATH=/bin\0container=lxc\0", "etc/resolv.conf": "nameserver 192.0.2.10\n"},
        "not the host's",
    ),
]


@pytest.mark.parametrize(("files", "seen"), [case[1:] for case in CONTAINERS], ids=[case[0] for case in CONTAINERS])
def test_s78_inside_a_container_it_says_which_case_it_is(tmp_path: Path, monkeypatch, files, seen: str) -> None:
    async def unknown(server: str, zone: str, port: int = 53) -> str:
        return "NXDOMAIN"

    monkeypatch.setattr(hostprobes, "zone_verdict", unknown)  # nobody outside this host is asked
    report = examine(host_tree.make(tmp_path, files))

    assert seen in report["host.container"].seen
    assert report["host.container"].severity.value == "error"
    assert report["host.container"].todo


@needs_root
def test_s78_a_container_that_asks_a_node_is_good(tmp_path: Path, resolvers) -> None:
    report = examine(host_tree.make(tmp_path, {".dockerenv": "", "etc/resolv.conf": f"nameserver {NODE}\n"}))

    assert report.wrong("host", "resolv") == []


def test_a_file_that_names_only_ourselves_leaves_no_upstream(tmp_path: Path) -> None:
    """S65, S70: outside names are SERVFAIL, and it is said why."""
    report = examine(host_tree.make(tmp_path, {}))

    assert "names only ourselves" in report["forward.upstreams"].seen
    assert report.wrong("forward") == ["forward.upstreams"]


def test_the_copy_that_the_guard_saved_names_the_upstreams(tmp_path: Path) -> None:
    saved = encode_saved(Saved(text=b"nameserver 192.0.2.1\n")).decode()
    report = examine(host_tree.make(tmp_path, {"state/resolv.conf.saved": saved}))

    assert "192.0.2.1" in report["forward.upstreams"].seen
    assert "no guard runs" in report["guard.runs"].seen or report["guard.runs"].severity.value == "warning"


def test_a_guard_that_runs_and_one_that_gave_up_are_seen(tmp_path: Path) -> None:
    saved = encode_saved(Saved(text=b"nameserver 192.0.2.1\n", fought_at=time.time() - 30)).decode()
    root = host_tree.make(
        tmp_path, {"state/resolv.conf.saved": saved, "etc/resolv.conf": "# dhclient\nnameserver 192.0.2.1\n"}
    )
    held = resolvfile.lock(root / "state")
    try:
        report = examine(root)
    finally:
        resolvfile.unlock(held)

    assert report["guard.runs"].severity.value == "ok"
    assert "again and again" in report["guard.fight"].seen
    assert "dhclient" in report["guard.fight"].todo


def test_the_state_directory_and_the_password_file_are_looked_at(tmp_path: Path) -> None:
    root = host_tree.make(tmp_path, {"etc/nacosdns/password": "secret\n"})
    (root / "etc/nacosdns/password").chmod(0o644)
    nacos = Nacos(servers=(), username="u", password_file="/etc/nacosdns/password")
    report = examine(root, config=Config(nacos=nacos, cache=Cache(dir="/nothere")))

    assert report.wrong("disk", "secret") == ["disk.dir", "secret.file"]
    assert report["secret.file"].command == "chmod o-rwx /etc/nacosdns/password"
    assert "secret\n" not in str(report.findings)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that every user gets to."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def on_disk(directory: Path) -> doctor.Finding:
    disk = hostfacts.disk(Tree(), str(directory), hostfacts.User("nobody", 65534, 65534))
    return next(one for one in judge_disk(Facts(disk=disk), Setting()) if one.id == "disk.writable")


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_directory_that_is_not_of_the_user_of_the_bridge_is_told(reachable: Path, mode: int) -> None:
    reachable.chmod(mode)
    shut = on_disk(reachable)
    os.chown(reachable, 65534, 65534)
    opened = on_disk(reachable)

    assert (shut.severity.value, opened.severity.value) == ("error", "ok")
    assert "by the user nobody: Permission denied" in shut.seen
    assert "server.user" in shut.todo
    assert list(reachable.iterdir()) == []


@needs_root
@pytest.mark.parametrize(("how", "seen"), [("ro", "Read-only file system"), ("full", "No space left on device")])
def test_a_directory_is_tried_by_writing_into_it(reachable: Path, how: str, seen: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "tmpfs", str(reachable)], check=True)
    try:
        good = on_disk(reachable)
        if how == "ro":
            subprocess.run(["mount", "-o", "remount,ro", str(reachable)], check=True)
        else:
            (reachable / "file").write_bytes(bytes(64 << 10))
        bad = on_disk(reachable)
    finally:
        subprocess.run(["umount", str(reachable)], check=True)

    assert (good.severity.value, bad.severity.value) == ("ok", "error")
    assert seen in bad.seen


def test_a_unit_that_nothing_starts_is_told(tmp_path: Path) -> None:
    unit = {"run/systemd/system": "/", "usr/lib/systemd/system/nacosdns.service": "[Service]\n"}
    want = {
        "etc/systemd/system/multi-user.target.wants/nacosdns.service": "-> /usr/lib/systemd/system/nacosdns.service"
    }
    reports = [
        examine(host_tree.make(tmp_path / str(number), files))
        for number, files in enumerate(({}, {"run/systemd/system": "/"}, unit, unit | want))
    ]

    assert [report.wrong("systemd") for report in reports] == [[], ["systemd.unit"], ["systemd.unit"], []]
    assert reports[2]["systemd.unit"].command == "systemctl enable --now nacosdns.service"


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("etc/plain", "etc/plain"),
        ("/etc/../etc/plain", "etc/plain"),
        ("etc/up", "etc/passwd"),
        ("var/run/x", "run/x"),
        ("etc/absolute", "run/x"),
        ("../../etc/plain", "etc/plain"),
    ],
)
def test_links_never_lead_out_of_the_root(tmp_path: Path, name: str, reached: str) -> None:
    """A container that is looked at from its host must not have files of the host shown for its own."""
    links = {"etc/up": "-> ../../../../../../etc/passwd", "var/run": "-> /run", "etc/absolute": "-> /var/run/x"}
    tree = Tree(str(host_tree.make(tmp_path, {"etc/plain": "x", "etc/round": "-> round", **links})))

    assert tree.path(name) == tmp_path / reached
    assert tree.text("etc/round") == ""
    assert tree.text("etc/up") == ""


def test_files_of_a_shape_that_nobody_expects_are_told_and_stop_nothing(tmp_path: Path) -> None:
    row = "   0: ZZ:0035 00000000:0000 07 0 0 0 0 0 7\n"
    root = host_tree.make(
        tmp_path,
        {
            "proc/net/udp": f"head\n{row}",
            "etc/nscd.conf": "\0\n",
            "proc/9/comm": "\udc00".encode("utf-8", "replace").decode(),
        },
    )
    report = examine(root)

    assert "port 53 could not be looked at: it cannot be read" in report["unknown"].seen
    assert report["resolv.ours"].severity.value == "ok"


def test_what_hangs_is_named_and_holds_nobody_up(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(hostfacts, "disk", lambda *_: time.sleep(20))
    report = examine(host_tree.make(tmp_path, {}))

    assert "cache.dir could not be looked at: no answer within" in report["unknown"].seen


NACOS = [
    ({}, []),
    ({"version": "1.4.1", "speaks_grpc": False}, ["nacos.generation"]),
    ({"speaks_grpc": False}, ["nacos.grpc"]),
    ({"version": "3.2.0"}, []),
]


@pytest.mark.parametrize(("how", "wrong"), NACOS)
def test_each_server_of_nacos_is_asked_by_http_and_grpc(
    tmp_path: Path, how: dict[str, object], wrong: list[str]
) -> None:
    """S41: a generation that cannot be used is named with its version."""

    async def run() -> Report:
        async with FakeNacos(**how).running() as nacos:
            config = Config(nacos=Nacos(servers=(nacos.address,)), cache=Cache(dir="/state"))
            facts = await doctoring.examine(config, "", Tree(str(host_tree.make(tmp_path, {}))), NOWHERE)
            return Report(doctor.judge(facts, doctoring.setting(config)))

    report = asyncio.run(run())

    assert report.wrong("nacos") == wrong
    seen = [finding.seen for finding in report.findings if finding.id.startswith("nacos")]
    assert how.get("version", "2.3.2") in seen[0] or wrong == ["nacos.grpc"]


@pytest.mark.parametrize(("password", "wrong"), [("right", []), ("guessed", ["nacos.login"])])
def test_the_user_of_nacos_is_logged_in_once_and_its_password_never_told(
    tmp_path: Path, password: str, wrong: list[str]
) -> None:
    async def run() -> Report:
        async with FakeNacos(users={"dns": "right"}).running() as nacos:
            config = Config(nacos=Nacos(servers=(nacos.address,), username="dns"), cache=Cache(dir="/state"))
            facts = await doctoring.examine(config, password, Tree(str(host_tree.make(tmp_path, {}))), NOWHERE)
            assert len(nacos.logins) == 1
            return Report(doctor.judge(facts, doctoring.setting(config)))

    report = asyncio.run(run())

    assert report.wrong("nacos") == wrong
    assert password not in str(report.findings)


def test_a_nacos_that_is_not_there_is_told(tmp_path: Path) -> None:
    config = Config(nacos=Nacos(servers=("127.0.0.1:1",)), cache=Cache(dir="/state"))

    assert examine(host_tree.make(tmp_path, {}), config=config).wrong("nacos") == ["nacos.reachable"]


# The command


def nacosdns(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nacosdns.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Bridge]:
    """A bridge whose address on port 53 stands first in a resolv.conf of its own."""
    file = host_tree.make(tmp_path / "host", {"etc/resolv.conf": f"nameserver {CORPORATE}\n"}) / "etc" / "resolv.conf"
    text = (
        '[nacos]\nservers = []\n[[static]]\nname = "orders"\ninstances = [{ ip = "10.0.0.1", port = 80 }]\n'
        f'[forward]\nupstreams = ["{CORPORATE}"]\n[host]\nresolv_conf = "{file}"\n'
    )
    running = Bridge(tmp_path, text=text, modules={}, listen=f'"{DEAD}:53"').up()
    yield running
    running.close()


@needs_root
def test_fix_does_the_safe_things_and_says_so_and_the_next_run_finds_nothing_of_them(
    own: Bridge, resolvers, tmp_path: Path
) -> None:
    file = tmp_path / "host" / "etc" / "resolv.conf"
    until(
        lambda: json.loads(nacosdns("status", "--json", "-c", str(own.file)).stdout)["supervisor"]["canary_age_s"], 20
    )
    before = json.loads(nacosdns("doctor", "--json", "-c", str(own.file)).stdout)
    fixed = nacosdns("doctor", "--fix", "-c", str(own.file))
    after = json.loads(nacosdns("doctor", "--json", "-c", str(own.file)).stdout)
    wrong_before = {row["id"] for row in before["findings"] if row["severity"] != "ok"}
    wrong_after = {row["id"] for row in after["findings"] if row["severity"] != "ok"}

    assert "resolv.ours" in wrong_before
    assert before["done"] == []
    assert "FIXED" in fixed.stdout
    assert "`nacosdns resolvconf restore` undoes it" in fixed.stdout
    assert not {name for name in wrong_after if name.startswith("resolv")}
    assert wrong_after <= wrong_before | {"guard.runs", "java.ttl"}  # a JVM of another test may have come meanwhile
    assert f"nameserver {DEAD}" in file.read_text(encoding="utf-8")
    assert nacosdns("resolvconf", "restore", "-c", str(own.file)).returncode == 0
    assert file.read_text(encoding="utf-8") == f"nameserver {CORPORATE}\n"


def test_services_that_no_name_leads_to_are_listed(tmp_path: Path) -> None:
    text = f'[nacos]\nservers = []\n[[static]]\nname = "{"x" * 70}"\ninstances = [{{ ip = "10.0.0.1", port = 80 }}]\n'
    running = Bridge(tmp_path, text=text, modules={}).up()
    try:
        rows = json.loads(nacosdns("doctor", "--json", "-c", str(running.file)).stdout)["findings"]
    finally:
        running.close()

    (found,) = [row for row in rows if row["id"] == "services.unnameable"]
    assert f"public/DEFAULT_GROUP/{'x' * 70}" in found["seen"]


@needs_root
def test_a_bridge_that_runs_is_found_good_and_one_that_is_stopped_is_told(own: Bridge, resolvers) -> None:
    until(
        lambda: json.loads(nacosdns("status", "--json", "-c", str(own.file)).stdout)["supervisor"]["canary_age_s"], 20
    )
    good = {row["id"]: row for row in json.loads(nacosdns("doctor", "--json", "-c", str(own.file)).stdout)["findings"]}
    own.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        stopped = nacosdns("doctor", "-c", str(own.file))
        took_s = time.monotonic() - began
    finally:
        own.signal(signal.SIGCONT)

    for name in ("bridge.running", "bridge.canary", "port.53", "forward.upstreams", "limits.files"):
        assert good[name]["severity"] == "ok", good[name]
    assert good["sockets.buffer"]["seen"].startswith("receive buffers hold ")
    assert stopped.returncode == 1
    assert f"pid {own.process.pid} is stopped" in stopped.stdout
    assert f"kill -CONT {own.process.pid}" in stopped.stdout
    assert took_s < doctoring.TOTAL_S + 2  # and the start of Python


def test_a_host_with_something_wrong_is_exit_1_in_lines_and_as_json(tmp_path: Path) -> None:
    root = host_tree.make(tmp_path, {"etc/nsswitch.conf": "hosts: files\n"})
    file = tmp_path / "nacosdns.toml"
    file.write_text(f'[nacos]\nservers = []\n[cache]\ndir = "{tmp_path}/state"\n', encoding="utf-8")
    words = ("doctor", "--root", str(root), "-c", str(file))
    plain, as_json = nacosdns(*words), nacosdns(*words, "--json")

    assert plain.returncode == as_json.returncode == 1
    assert "ERROR    nss.hosts" in plain.stdout
    assert "-> add dns to /etc/nsswitch.conf" in plain.stdout
    rows = json.loads(as_json.stdout)["findings"]
    assert {"id", "severity", "seen", "todo", "command", "fix"} == set(rows[0])
    assert {row["severity"] for row in rows} <= {"ok", "warning", "error"}


@pytest.mark.parametrize(
    ("words", "text"),
    [(("--fix", "--root", "/tmp"), "[nacos]\nservers = []\n"), ((), "[nacos]\nserver = []\n")],  # noqa: S108  # a word
)
def test_a_wrong_use_or_configuration_is_exit_2_and_one_line(tmp_path: Path, words, text: str) -> None:
    file = tmp_path / "nacosdns.toml"
    file.write_text(text, encoding="utf-8")
    done = nacosdns("doctor", *words, "-c", str(file))

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
