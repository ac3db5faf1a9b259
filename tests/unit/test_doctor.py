"""What the doctor makes of facts."""

from __future__ import annotations

import msgspec
import pytest

from nacosdns.core.doctor import is_wrong, judge
from nacosdns.core.facts import (
    Bridge,
    Disk,
    Facts,
    Guard,
    Holder,
    Jvm,
    Nacos,
    NacosServer,
    Namespace,
    Nscd,
    Nss,
    ResolvFile,
    Secret,
    Setting,
    System,
    Upstreams,
    UpstreamState,
)
from nacosdns.core.finding import Finding, Severity

GOOD = Facts(
    resolv=ResolvFile(servers=("127.0.0.1",), options=("timeout:1", "attempts:2"), ours=True),
    guard=Guard(runs=True, has_copy=True),
    upstreams=Upstreams(path="/var/lib/nacosdns/resolv.conf.saved", servers=("192.0.2.1",)),
    answers={"127.0.0.1": "zone"},
    nss=Nss(hosts=("files", "dns")),
    holders=(Holder(kind="udp", address="127.0.0.1", pid=10, name="nacosdns"),),
    nscd=(),
    jvms=(),
    system=System(systemd=True, unit="nacosdns.service", enabled=True, clock_synchronised=True),
    disk=Disk(path="/var/lib/nacosdns", kind="ext4"),
    secret=Secret(path="/etc/nacosdns/password", mode=0o640),
    nacos=Nacos(servers=(NacosServer(name="10.0.0.5:8848", version="2.3.2"),), login_error=""),
    bridge=Bridge(
        pid=10,
        children=(11, 12),
        canary_age_s=0.4,
        namespaces=(Namespace(name="public", connected=True, server="10.0.0.5:8848", version="2.3.2"),),
        upstreams=(UpstreamState(address="192.0.2.1:53", health="up"),),
        buffer_bytes=16 << 20,
        files_max=524_288,
    ),
)
"""A host that nothing is wrong with."""
SETTING = Setting()
CLUSTER = Setting(own="127.0.0.1", agent=False, listen=("0.0.0.0:53",), allow=("private",))


def having(part: str, **changes: object) -> Facts:
    """``GOOD`` with something else in one of its parts."""
    return msgspec.structs.replace(GOOD, **{part: msgspec.structs.replace(getattr(GOOD, part), **changes)})


def wrong(facts: Facts, setting: Setting = SETTING) -> list[tuple[str, str]]:
    return [(one.id, one.severity.value) for one in judge(facts, setting) if one.severity is not Severity.OK]


def test_a_good_host_has_only_good_findings_and_each_part_of_it_has_one():
    findings = judge(GOOD, SETTING)

    assert not is_wrong(findings)
    assert {one.id.partition(".")[0] for one in findings} == {
        *("resolv", "guard", "nss", "bridge", "nacos", "forward", "port", "disk", "secret", "clock", "systemd"),
        *("sockets", "limits", "access"),
    }


UP, DOWN, LOOP = (
    UpstreamState(address=f"192.0.2.{n}:53", health=health) for n, health in enumerate(("up", "down", "loop"))
)
LATE = Namespace(name="dev", connected=False, error="10.0.0.5:8848 cannot be reached")
CASES = [
    ("bridge", {"error": "nacosdns is not running"}, "bridge.running", "error"),
    ("bridge", {"covered": True}, "bridge.front", "error"),
    ("bridge", {"canary_age_s": None}, "bridge.canary", "error"),
    ("bridge", {"canary_age_s": 3.5}, "bridge.canary", "error"),
    ("bridge", {"missing": ("docker0:53",)}, "bridge.listen", "warning"),
    ("bridge", {"failed": ("the keeper: the keeper is down",)}, "bridge.parts", "error"),
    ("bridge", {"store_error": "No space left on device"}, "bridge.store", "error"),
    ("bridge", {"namespaces": (LATE,)}, "nacos.connected", "error"),
    ("bridge", {"store_failures": 3}, "bridge.store", "warning"),
    ("bridge", {"brake_s": 12.0}, "nacos.brake", "warning"),
    ("bridge", {"upstreams": (UP, LOOP)}, "forward.loop", "error"),
    ("bridge", {"upstreams": (UP, DOWN)}, "forward.upstreams", "warning"),
    ("bridge", {"upstreams": (DOWN,)}, "forward.upstreams", "error"),
    ("bridge", {"buffer_bytes": 212_992}, "sockets.buffer", "warning"),
    ("bridge", {"files_max": 256}, "limits.files", "warning"),
    ("upstreams", {"servers": (), "ourselves": ("127.0.0.1",)}, "forward.upstreams", "error"),
    ("upstreams", {"servers": (), "path": ""}, "forward.upstreams", "error"),
    ("disk", {"exists": False}, "disk.dir", "warning"),
    ("disk", {"read_only": True}, "disk.writable", "error"),
    ("disk", {"writable": False}, "disk.writable", "error"),
    ("disk", {"free_bytes": 1 << 20}, "disk.space", "error"),
    ("disk", {"free_bytes": 50 << 20, "free_part": 0.5}, "disk.space", "warning"),
    ("disk", {"free_bytes": 500 << 20, "free_part": 0.01}, "disk.space", "warning"),
    ("disk", {"inodes_part": 0.001}, "disk.space", "warning"),
    ("disk", {"kind": "tmpfs"}, "disk.kind", "warning"),
    ("disk", {"kind": "nfs4"}, "disk.kind", "warning"),
    ("secret", {"mode": 0o644}, "secret.file", "warning"),
    ("secret", {"error": "cannot be read"}, "secret.file", "error"),
    ("system", {"clock_synchronised": False}, "clock.sync", "warning"),
    ("system", {"unit": ""}, "systemd.unit", "warning"),
    ("system", {"enabled": False}, "systemd.unit", "warning"),
    ("system", {"leftovers": ("/etc/.resolv.conf.nacosdns",)}, "guard.leftover", "warning"),
    ("guard", {"fought_s": 20.0}, "guard.fight", "error"),
    ("guard", {"runs": False}, "guard.runs", "warning"),
    ("resolv", {"kind": "missing", "servers": ()}, "resolv.file", "warning"),
    ("resolv", {"immutable": True}, "resolv.immutable", "warning"),
    ("nacos", {"login_error": "refuses the user"}, "nacos.login", "error"),
]


@pytest.mark.parametrize(
    ("part", "changes", "name", "severity"), CASES, ids=[f"{case[2]}: {case[1]}"[:60] for case in CASES]
)
def test_one_thing_that_is_wrong_is_one_finding_with_what_to_do(part, changes, name, severity):
    facts = having(part, **changes)
    found = [one for one in judge(facts, SETTING) if one.severity is not Severity.OK]

    assert [(one.id, one.severity.value) for one in found] == [(name, severity)]
    assert found[0].todo


@pytest.mark.parametrize(
    ("server", "name", "severity"),
    [
        ({"version": "1.4.1", "grpc_error": "closed"}, "nacos.generation", "error"),
        ({"http_error": "refused", "grpc_error": "refused"}, "nacos.reachable", "error"),
        ({"grpc_error": "port 9848 does not answer"}, "nacos.grpc", "error"),
        ({"http_error": "does not answer"}, "nacos.http", "warning"),
    ],
)
def test_what_a_server_of_nacos_does_not_do_is_told_apart(server, name, severity):
    facts = having("nacos", servers=(NacosServer(name="10.0.0.6:8848", **server),))

    assert wrong(facts) == [(name, severity)]


def test_without_a_nacos_nothing_is_said_of_one():
    facts = msgspec.structs.replace(GOOD, nacos=None)

    assert not [one for one in judge(facts, Setting(nacos=False)) if one.id.startswith("nacos")]


def test_what_could_not_be_learned_is_told_and_never_good():
    facts = Facts(unknown={"java": "no answer within 2.5 s", "bridge": "no answer within 2.5 s"})

    assert wrong(facts, Setting(nacos=False)) == [("bridge.running", "error"), ("unknown", "warning")]
    assert is_wrong(judge(facts, SETTING))


def test_everybody_may_ask_is_an_error_where_the_world_reaches_us():
    wide = Setting(agent=False, listen=("0.0.0.0:53",), allow=("all",))
    public = having("system", public_addresses=("203.0.113.9",))

    assert wrong(GOOD, wide) == [("access.open", "warning")]
    assert wrong(public, wide) == [("access.open", "error")]
    assert wrong(public, CLUSTER) == []
    assert wrong(public, Setting(listen=("127.0.0.1:53",), allow=("all",))) == []
    assert wrong(public, Setting(listen=("127.0.0.1:53", "10.0.0.1:53"), allow=("0.0.0.0/0",))) == [
        ("access.open", "warning")
    ]


def test_a_cluster_node_need_not_ask_itself():
    facts = having("resolv", servers=("192.0.2.1",), ours=False)

    assert wrong(facts, CLUSTER) == []
    assert ("resolv.ours", "error") in wrong(facts, SETTING)


def test_a_host_without_port_53_is_told_that_a_resolv_conf_has_no_ports():
    assert ("resolv.port", "warning") in wrong(GOOD, Setting(own="", listen=("127.0.0.1:5353",)))


@pytest.mark.parametrize(
    ("said", "severity"),
    [("NXDOMAIN", "error"), ("REFUSED", "error"), ("no data", "error"), ("silent", "warning"), ("zone", "")],
)
def test_a_server_behind_us_is_judged_by_what_it_says_of_our_zone(said, severity):
    facts = msgspec.structs.replace(
        having("resolv", servers=("127.0.0.1", "192.0.2.1")), answers={"127.0.0.1": "zone", "192.0.2.1": said}
    )

    assert wrong(facts) == ([("resolv.fallback", severity)] if severity else [])


def test_a_brake_and_a_fight_name_the_command_that_ends_them():
    facts = having("bridge", brake_s=10.0)
    found = next(one for one in judge(facts, Setting(config_path="/etc/n.toml")) if one.id == "nacos.brake")

    assert found.command == "nacosdns cache accept -c /etc/n.toml"


def test_many_services_without_a_name_are_counted_and_a_few_named():
    rows = tuple((f"public/DEFAULT_GROUP/{number:070}", "over 63 bytes") for number in range(9))
    found = next(
        one for one in judge(msgspec.structs.replace(GOOD, unnameable=rows), SETTING) if one.id == "services.unnameable"
    )

    assert "9 services" in found.seen
    assert "and 4 more" in found.seen
    assert found.seen.count("public/") == 5


@pytest.mark.parametrize(
    ("jvm", "seen"),
    [
        (Jvm(pid=5), "30 s"),
        (Jvm(pid=5, security_manager=True), "for ever"),
        (Jvm(pid=5, ttl_s=-1, source="java.security"), "for ever"),
        (Jvm(pid=5, ttl_s=300, source="java.security"), "300 s"),
        (Jvm(pid=5, mistaken=True), "has no effect"),
    ],
)
def test_a_java_that_keeps_addresses_long_is_told_with_its_pid(jvm, seen):
    (found,) = [
        one for one in judge(msgspec.structs.replace(GOOD, jvms=(jvm,)), SETTING) if one.severity is not Severity.OK
    ]

    assert found.id == "java.ttl"
    assert "pid 5" in found.seen
    assert seen in found.seen
    assert "sun.net.inetaddr.ttl" in found.todo


def test_a_bridge_that_may_not_be_asked_is_not_called_dead():
    facts = having("bridge", error="no right to use control.sock", denied=True)

    assert wrong(facts) == [("bridge.running", "warning")]
    assert next(one for one in judge(facts, SETTING) if one.id == "bridge.running").todo == "run doctor as root"


def test_nscd_that_keeps_no_hosts_is_good():
    assert wrong(msgspec.structs.replace(GOOD, nscd=(Nscd(pid=3, caches_hosts=False),))) == []
    assert wrong(msgspec.structs.replace(GOOD, nscd=(Nscd(pid=3),))) == [("nscd.running", "warning")]


def test_our_own_children_on_port_53_are_not_in_our_way():
    ours = (
        Holder(kind="udp", address="127.0.0.1", pid=11),
        Holder(kind="udp", address="127.0.0.53", pid=99, name="systemd-resolve"),
    )

    assert wrong(msgspec.structs.replace(GOOD, holders=ours)) == []


def test_sockets_that_systemd_holds_for_our_unit_are_ours():
    held = (Holder(kind="udp", address="127.0.0.1", pid=1, name="systemd"),)
    down = msgspec.structs.replace(having("bridge", error="not running"), holders=held)
    foreign = msgspec.structs.replace(down, system=System())

    assert wrong(down) == [("bridge.running", "error")]
    assert ("port.53", "error") in wrong(foreign)


def test_the_same_facts_give_the_same_findings():
    assert judge(GOOD, SETTING) == judge(GOOD, SETTING)
    assert msgspec.json.decode(msgspec.json.encode(judge(GOOD, SETTING)), type=tuple[Finding, ...]) == judge(
        GOOD, SETTING
    )
