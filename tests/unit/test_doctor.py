"""What the doctor makes of facts."""

from __future__ import annotations

import msgspec
import pytest

from nacosdns.core.doctor import is_wrong, judge
from nacosdns.core.facts import (
    Brake,
    Bridge,
    Disk,
    Facts,
    Guard,
    Holder,
    Jvm,
    Listed,
    Nacos,
    NacosServer,
    Namespace,
    Nscd,
    Nss,
    OpenFiles,
    Refused,
    ResolvFile,
    Secret,
    Services,
    Setting,
    StaticFile,
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
        files=(OpenFiles(name="the supervisor", pid=10, used=30, limit=524_288),),
    ),
    services=Services(),
)
"""A host that nothing is wrong with."""
SETTING = Setting()
CLUSTER = Setting(own="127.0.0.1", agent=False, listen=("0.0.0.0:53",), allow=("loopback", "private"))


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


def finding(name: str, facts: Facts, setting: Setting = SETTING) -> Finding:
    (found,) = [one for one in judge(facts, setting) if one.id == name]
    return found


UP, DOWN, LOOP = (
    UpstreamState(address=f"192.0.2.{n}:53", health=health) for n, health in enumerate(("up", "down", "loop"))
)


def space(**state: object) -> Namespace:
    return Namespace(name="public", connected=True, server="10.0.0.5:8848", **state)  # type: ignore[arg-type]


def listed(group: str, count: int, strangers: int = 0) -> Listed:
    return Listed(namespace="public", group=group, listed=count, strangers=strangers)


LATE = Namespace(name="dev", connected=False, error="10.0.0.5:8848 cannot be reached")
CASES = [
    ("bridge", {"error": "nacosdns is not running"}, "bridge.running", "error"),
    ("bridge", {"covered": True}, "bridge.front", "error"),
    ("bridge", {"canary_age_s": None}, "bridge.canary", "error"),
    ("bridge", {"canary_age_s": 3.5}, "bridge.canary", "error"),
    ("bridge", {"missing": ("docker0:53",)}, "bridge.listen", "warning"),
    ("bridge", {"failed": ("the keeper: the keeper is down",)}, "bridge.parts", "error"),
    ("bridge", {"passing": ("the keeper: the keeper is starting; try again in a moment",)}, "bridge.parts", "warning"),
    ("bridge", {"store_error": "No space left on device"}, "bridge.store", "error"),
    ("bridge", {"namespaces": (LATE,)}, "nacos.connected", "error"),
    ("bridge", {"reload_refused": "line 3: no such key", "reload_s": 4.0}, "bridge.reload", "error"),
    ("bridge", {"upgrade_failed": "it does not import"}, "bridge.upgrade", "error"),
    ("bridge", {"web_phase": "down"}, "bridge.web", "warning"),
    ("bridge", {"web_fault": "127.0.0.1:9353 is taken", "web_phase": "down"}, "bridge.web", "warning"),
    ("bridge", {"protected": 6}, "nacos.protection", "warning"),
    ("bridge", {"store_failing": "disk is full"}, "bridge.store", "error"),
    ("bridge", {"brake_s": 12.0}, "nacos.brake", "warning"),
    ("bridge", {"unhealthy": 2, "unhealthy_named": (("a", "all"), ("b", "all"))}, "services.unhealthy", "warning"),
    ("bridge", {"namespaces": (space(refused="403 no (no nacos.username is set)"),)}, "nacos.login", "error"),
    ("bridge", {"namespaces": (space(error="login: cannot be asked"),)}, "nacos.login", "error"),
    ("bridge", {"namespaces": (space(took_s=1.8),)}, "nacos.slow", "warning"),
    ("bridge", {"catalogues": (listed("G", 0),)}, "nacos.namespace", "warning"),
    ("bridge", {"catalogues": (listed("G", 3), listed("TYPO", 0))}, "nacos.namespace", "warning"),
    ("bridge", {"catalogues": (listed("G", 3, strangers=7),)}, "nacos.namespace", "warning"),
    ("bridge", {"upstreams": (UP, LOOP)}, "forward.loop", "error"),
    ("bridge", {"upstreams": (UP, DOWN)}, "forward.upstreams", "warning"),
    ("bridge", {"upstreams": (DOWN,)}, "forward.upstreams", "error"),
    ("bridge", {"buffer_bytes": 212_992}, "sockets.buffer", "warning"),
    ("bridge", {"address_space": 300 << 20}, "limits.memory", "warning"),
    ("bridge", {"failing": {"192.0.2.1:53": "said SERVFAIL"}}, "forward.upstreams", "error"),
    ("bridge", {"failed_last": "12 outside names got no answer"}, "forward.names", "warning"),
    ("bridge", {"refused": Refused(clients=2, last="10.0.0.7", ago_s=3.0)}, "access.refused", "warning"),
    ("bridge", {"refused": Refused(clients=2, last="fe80::7%eth0", ago_s=3.0)}, "access.refused", "warning"),
    ("bridge", {"files": (OpenFiles(name="front 3", pid=11, used=25, limit=12),)}, "limits.files", "error"),
    ("bridge", {"files": (OpenFiles(name="front 3", pid=11, used=950, limit=1000),)}, "limits.files", "warning"),
    ("bridge", {"files": (OpenFiles(name="front 3", pid=11, used=25, limit=256),)}, "limits.files", "warning"),
    ("bridge", {"hindered": (("front 3", "Operation not permitted"),)}, "bridge.hindered", "error"),
    ("services", {"future": 2, "future_s": 10800.0}, "bridge.clock", "warning"),
    ("upstreams", {"servers": (), "ourselves": ("127.0.0.1",)}, "forward.upstreams", "error"),
    ("upstreams", {"servers": (), "path": ""}, "forward.upstreams", "error"),
    ("upstreams", {"asked": {"192.0.2.1": "Connection refused"}}, "forward.upstreams", "error"),
    ("upstreams", {"asked": {"192.0.2.1": "NOERROR", "192.0.2.2": "REFUSED"}}, "forward.upstreams", "warning"),
    ("upstreams", {"looping": ("127.0.0.1:53",), "named": ("127.0.0.1:53",)}, "forward.loop", "error"),
    ("disk", {"damaged": ("/var/lib/nacosdns/cache.db.damaged-1",)}, "disk.damaged", "warning"),
    ("disk", {"exists": False}, "disk.dir", "warning"),
    ("disk", {"write_error": "Read-only file system"}, "disk.writable", "error"),
    ("disk", {"write_error": "Permission denied", "user": "nacosdns"}, "disk.writable", "error"),
    ("disk", {"free_bytes": 1 << 20, "free_part": 0.4}, "disk.space", "error"),
    ("disk", {"free_bytes": 1 << 20, "free_part": 0.91}, "disk.space", "warning"),
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
    ("nacos", {"login_error": "refuses the user", "login_fault": "refused"}, "nacos.login", "error"),
    ("nacos", {"login_error": "answers with status 404", "login_fault": "path"}, "nacos.login", "error"),
    ("nacos", {"login_error": "cannot be asked", "login_fault": "down"}, "nacos.login", "warning"),
    ("nacos", {"login_error": "no password", "login_fault": "password"}, "nacos.login", "warning"),
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
        ({"http_error": "does not answer", "took_s": 0.01, "late": True}, "nacos.http", "warning"),
        ({"http_error": "does not answer", "took_s": 3.6, "late": True}, "nacos.slow", "warning"),
        ({"grpc_error": "does not answer", "took_s": 3.6, "late": True}, "nacos.slow", "warning"),
        ({"http_error": "refused", "took_s": 3.6}, "nacos.http", "warning"),
        ({"took_s": 0.6}, "nacos.slow", "warning"),
        ({"http_error": "speaks no HTTP", "grpc_error": "refused", "http_port": 7848}, "nacos.reachable", "error"),
    ],
)
def test_what_a_server_of_nacos_does_not_do_is_told_apart(server, name, severity):
    facts = having("nacos", servers=(NacosServer(name="10.0.0.6:8848", **server),))

    assert wrong(facts) == [(name, severity)]


@pytest.mark.parametrize(
    ("facts", "seen", "todo"),
    [
        (
            having(
                "bridge", files=(OpenFiles(name="front 3", pid=11, used=25, limit=12),), hindered=(("front 3", "x"),)
            ),
            "front 3 has used all 12 files",
            "LimitNOFILE",
        ),
        (having("bridge", hindered=(("front 3", "Operation not permitted"),)), "front 3", "firewall"),
        (having("bridge", failing={"192.0.2.1:53": "said REFUSED"}), "every upstream refuses us", "access list"),
        (having("bridge", failing={"192.0.2.1:53": "said SERVFAIL"}), "192.0.2.1:53 said SERVFAIL", "log"),
        (having("upstreams", asked={"192.0.2.1": "REFUSED"}), "every upstream refuses us", "access list"),
        (having("upstreams", asked={"192.0.2.1": "REFUSED", "192.0.2.2": "NOERROR"}), "192.0.2.1 (REFUSED)", "access"),
    ],
)
def test_what_is_in_the_way_of_outside_names_is_said_with_who_can_mend_it(facts, seen, todo):
    (found,) = [one for one in judge(facts, SETTING) if one.severity is not Severity.OK]

    assert seen in found.seen
    assert todo in found.todo


def test_a_worker_with_few_files_that_serves_no_clients_is_not_short():
    files = (OpenFiles(name="the web", pid=11, used=25, limit=256, serves=False),)

    assert wrong(having("bridge", files=files)) == []


@pytest.mark.parametrize(
    ("last", "ago_s", "said"), [("192.0.2.7", 3.0, ["access.refused"]), ("10.0.0.7", 700.0, []), ("::1", 700.0, [])]
)
def test_a_stranger_who_is_refused_is_no_fault_and_what_was_long_ago_is_not_said(last, ago_s, said):
    facts = having("bridge", refused=Refused(clients=1, last=last, ago_s=ago_s))

    assert [one.id for one in judge(facts, SETTING) if one.id == "access.refused"] == said
    assert wrong(facts) == []


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
    found = finding("services.unnameable", msgspec.structs.replace(GOOD, services=Services(unnameable=rows)))

    assert "9 services" in found.seen
    assert "and 4 more" in found.seen
    assert found.seen.count("public/") == 5


@pytest.mark.parametrize(
    ("kind", "todo"),
    [({}, "start it"), ({"silent": True}, "look at that process"), ({"foreign": True}, "that release")],
)
def test_a_bridge_that_does_not_answer_is_told_apart_from_one_that_does_not_run(kind, todo):
    facts = having("bridge", error="no answer", **kind)

    assert wrong(facts)[0] == ("bridge.running", "error")
    assert todo in finding("bridge.running", facts).todo


def test_what_a_part_ended_of_is_said():
    ends = ("front 3, 4 times in a row: PermissionError: no (store.py:1)",)

    assert ends[0] in finding("bridge.front", having("bridge", covered=True, ends=ends)).seen
    assert wrong(having("bridge", ends=ends)) == [("bridge.parts", "warning")]


@pytest.mark.parametrize(
    ("reason", "todo"),
    [
        ("unable to open database file: Read-only file system", "mount it for writing"),
        ("attempt to write a readonly database: cache.db: Permission denied", "server.user"),
        ("attempt to write a readonly database", "server.user"),
        ("database or disk is full: No space left on device", "make room"),
        ("database or disk is full", "make room"),
        ("file is not a database", "start the bridge again"),
        ("database disk image is malformed", "start the bridge again"),
        ("disk I/O error", "health of the disk"),
        ("something else", "see store.write_failed"),
    ],
)
def test_a_store_that_fails_has_one_cure_for_each_cause(reason: str, todo: str):
    found = finding("bridge.store", having("bridge", store_failing=reason))
    not_used = finding("bridge.store", having("bridge", store_error=reason))

    assert todo in found.todo
    assert ("make room" in found.todo) is ("full" in reason)
    assert found.command == ("systemctl restart nacosdns" if "again" in todo else "")
    assert not_used.todo == found.todo or "else" in reason


@pytest.mark.parametrize(("free_mib", "todo"), [(5, "larger disk"), (12, "larger disk"), (90, "larger disk")])
def test_a_small_disk_with_most_of_it_free_is_not_told_to_make_room(free_mib: int, todo: str):
    found = finding("disk.space", having("disk", free_bytes=free_mib << 20, free_part=0.92))

    assert todo in found.todo
    assert "make room" not in found.todo


def test_a_disk_that_this_user_cannot_try_is_judged_by_the_bridge_and_without_one_never_called_good():
    facts = having("disk", tried=False)

    assert wrong(facts) == []
    assert ("disk.writable", "warning") in wrong(msgspec.structs.replace(facts, bridge=None))


def test_a_stopped_part_is_told_with_the_command_that_lets_it_go_on():
    keeper = finding("bridge.parts", having("bridge", stopped=(("the keeper", 4711),)))
    web = having("bridge", stopped=(("the web", 4712),), web_phase="hangs")

    assert (keeper.severity.value, keeper.command) == ("error", "kill -CONT 4711")
    assert keeper.seen == "the keeper is stopped, pid 4711"
    assert wrong(web) == [("bridge.web", "warning")]
    assert finding("bridge.web", web).command == "kill -CONT 4712"
    assert "it is stopped" in finding("bridge.web", web).seen


def test_upstreams_that_come_and_go_are_told_as_status_tells_it():
    facts = having("bridge", flaps=("192.0.2.1:53 changed 9 times in 10 min, last error timeout",))

    assert wrong(facts) == [("forward.flaps", "warning")]
    assert "192.0.2.1:53 changed 9 times" in finding("forward.flaps", facts).seen


@pytest.mark.parametrize(
    ("listen", "allow", "own"),
    [
        (("127.0.0.1:53", "10.77.0.1:53"), ("10.77.0.0/24",), "127.0.0.1"),
        (("127.0.0.1:53", "[::1]:53", "10.77.0.1:53"), ("10.77.0.0/24", "127.0.0.0/8"), "::1"),
        (("127.0.0.1:53", "10.77.0.1:53"), ("loopback",), "10.77.0.1"),
        (("lo:53", "10.77.0.1:53"), ("10.77.0.0/24",), "127.0.0.1"),
        (("127.0.0.1:53", "10.77.0.1:53"), ("link",), ""),
        (("0.0.0.0:53",), ("10.77.0.0/24",), "127.0.0.1"),
        (("127.0.0.1:53", "10.77.0.1:53"), ("loopback", "link"), ""),
        (("127.0.0.1:53", "[fe80::1%eth0]:53"), ("loopback", "private"), ""),
        (("127.0.0.1:53",), ("10.77.0.0/24",), ""),
    ],
)
def test_this_host_has_to_be_among_those_who_may_ask(listen: tuple[str, ...], allow: tuple[str, ...], own: str):
    found = [one for one in judge(GOOD, Setting(listen=listen, allow=allow)) if one.id == "access.own"]

    assert [one.severity.value for one in found] == ["warning"] * bool(own)
    assert all(f"that ask {own} get REFUSED: it is not in server.allow" in one.seen for one in found)
    loopback = own in {"127.0.0.1", "::1"}
    assert all(("loopback" if loopback else own) in one.todo for one in found)


@pytest.mark.parametrize("used", [26, 24])
@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"web_phase": "down", "web_fault": "127.0.0.1:9353 (tcp) cannot be bound"}, "bridge.web"),
        ({"failed": ("the keeper: the keeper is down; try again",)}, "bridge.parts"),
        ({"passing": ("the web: it is starting",)}, "bridge.parts"),
    ],
)
def test_what_follows_from_files_that_are_used_up_points_to_them(state: dict[str, object], name: str, used: int):
    files = (OpenFiles(name="the supervisor", pid=10, used=used, limit=26),)
    ends = ("front 3, 3 times in a row: cannot be started: Too many open files",)
    facts = having("bridge", files=files, covered=True, **{"ends": ends} | state)

    assert set(wrong(facts)) >= {("limits.files", "error"), ("bridge.front", "error")}
    assert {finding(one, facts).todo for one in ("bridge.front", name)} == {"see limits.files"}


def test_an_address_server_that_does_not_answer_is_named():
    bridge = having("bridge", namespaces=(LATE,)).bridge
    facts = msgspec.structs.replace(GOOD, bridge=bridge, nacos=None, unknown={"nacos": "cannot be reached"})
    setting = Setting(endpoint="10.0.0.9:8080")

    assert wrong(facts, setting) == [("nacos.endpoint", "error"), ("nacos.connected", "error")]
    assert "10.0.0.9:8080" in finding("nacos.endpoint", facts, setting).seen
    assert "nacos.endpoint" in finding("nacos.connected", facts, setting).todo


def test_a_password_file_has_its_fault_and_its_mode():
    facts = having("secret", error="/etc/nacosdns/password is empty", mode=0o644)

    assert wrong(facts) == [("secret.file", "error"), ("secret.file", "warning")]


def test_a_guard_that_runs_is_not_to_be_started_again():
    fought = having("guard", fought_s=20.0)
    facts = msgspec.structs.replace(fought, resolv=ResolvFile(servers=("192.0.2.1", "192.0.2.2")))
    facts = msgspec.structs.replace(facts, answers={"192.0.2.1": "NXDOMAIN", "192.0.2.2": "NXDOMAIN"})
    bad = [one for one in judge(facts, SETTING) if one.id.startswith("resolv.") and one.severity is not Severity.OK]

    assert {one.id for one in bad} == {"resolv.ours", "resolv.fallback"}
    assert "see guard.fight" in finding("resolv.ours", facts).todo
    assert not any("guard" in one.command for one in bad)
    assert not any("have the guard keep" in one.todo for one in bad)


def test_a_bridge_that_does_not_run_may_end_at_once_and_who_says_why_is_named():
    todo = finding("bridge.running", having("bridge", error="not running"), Setting(config_path="/etc/n.toml")).todo

    assert "`journalctl -u nacosdns` or `nacosdns run -c /etc/n.toml` says why" in todo


@pytest.mark.parametrize(
    ("entry", "todo"), [("d1:53", "bring that interface up"), ("10.0.0.9:53", "give this host that address")]
)
def test_what_is_waited_for_is_an_address_or_an_interface(entry: str, todo: str):
    assert todo in finding("bridge.listen", having("bridge", missing=(entry,))).todo


def test_spellings_that_share_a_name_are_a_warning_and_services_not_looked_at_are_said() -> None:
    services = Services(clashing=("Orders and orders (public/DEFAULT_GROUP)",), seen=200, total=900)
    facts = msgspec.structs.replace(GOOD, services=services)

    assert wrong(facts) == [("services.clashing", "warning")]
    assert "Orders and orders (public/DEFAULT_GROUP)" in finding("services.clashing", facts).seen
    assert "200 of 900" in finding("services.many", facts).seen


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


@pytest.mark.parametrize(
    ("fault", "has", "has_not"),
    [
        ("refused", "password_file", "context_path"),
        ("path", "context_path", "password"),
        ("down", "reachable", "correct"),
        ("password", "secret.file", "correct"),
    ],
)
def test_a_login_that_fails_is_advised_by_why_it_fails(fault: str, has: str, has_not: str):
    found = finding("nacos.login", having("nacos", login_error="why", login_fault=fault))

    assert has in found.todo
    assert has_not not in found.todo


NO_ANSWER = {"servers": (NacosServer(name="10.0.0.5:8848", http_error="refused", grpc_error="refused"),)}
LATE_ANSWER = {"servers": (NacosServer(name="10.0.0.5:8848", took_s=1.8),)}
NO_LOGIN = {"login_error": "refuses the user", "login_fault": "refused"}


@pytest.mark.parametrize(
    ("nacos", "todo"),
    [({}, "namespace exists"), (NO_ANSWER, "10.0.0.5:8848"), (NO_LOGIN, "nacos.login"), (LATE_ANSWER, "nacos.slow")],
)
def test_namespaces_that_are_not_connected_are_one_finding_behind_its_cause(nacos: dict[str, object], todo: str):
    names = tuple(Namespace(name=name, connected=False, error="cannot be reached") for name in ("public", "dev", "qa"))
    facts = msgspec.structs.replace(having("nacos", **nacos), bridge=having("bridge", namespaces=names).bridge)
    wrongs = [one for one in judge(facts, SETTING) if one.severity is not Severity.OK]

    assert wrongs[-1].id == "nacos.connected"
    assert "3 namespaces not connected (public, dev, qa): cannot be reached" in wrongs[-1].seen
    assert todo in wrongs[-1].todo
    assert len(wrongs) == (2 if nacos else 1)


def test_what_is_protected_is_named_with_both_ways_out():
    facts = msgspec.structs.replace(
        having("bridge", protected=1), services=Services(protected=("orders.nacos. (empty)",))
    )
    found = finding("nacos.protection", facts)

    assert found.seen == "1 service is answered otherwise than Nacos said last: orders.nacos. (empty)"
    assert "cache flush NAME" in found.todo
    assert "disabled" in found.todo
    assert found.command == "nacosdns services"


@pytest.mark.parametrize(
    ("why", "todo"),
    [
        ("namespace 'a63' is not in the configuration", "[namespaces]"),
        ("'configuration' has 70 bytes; a part of a name holds 63", "at most 63 bytes"),
        ("it reads as a name with a prefix (_PORT._tcp, _grpc_config)", "no prefix"),
        ("its name would have over 255 bytes, or an alias or another zone hides it", "shorter"),
        ("its service or group is empty", "a service and a group"),
    ],
)
def test_a_service_without_a_name_is_advised_by_the_reason(why: str, todo: str):
    facts = msgspec.structs.replace(GOOD, services=Services(unnameable=(("public/G/s", why),)))
    found = finding("services.unnameable", facts)

    assert found.seen == f"no DNS name leads to 1 service (public/G/s: {why})"
    assert todo in found.todo


def test_a_static_file_is_good_or_said_with_its_fault():
    good = msgspec.structs.replace(GOOD, static_file=StaticFile(path="/etc/s.toml"))
    bad = msgspec.structs.replace(GOOD, static_file=StaticFile(path="/etc/s.toml", error="/etc/s.toml:3: no"))

    assert wrong(good) == []
    assert wrong(bad) == [("static.file", "error")]
    assert "/etc/s.toml:3: no" in finding("static.file", bad).seen


def test_a_file_that_is_refused_while_the_bridge_runs_is_an_error():
    assert wrong(msgspec.structs.replace(GOOD, config_error="n.toml:3: no")) == [("config.file", "error")]


def test_an_upstream_that_the_bridge_left_out_as_itself_is_a_loop_only_where_it_was_named():
    facts = having("bridge", left_out=(("0.0.0.0:53", "that is ourselves"),))

    assert wrong(facts) == []
    assert wrong(facts, Setting(upstreams=("0.0.0.0:53", "192.0.2.1"))) == [("forward.loop", "error")]


def test_what_upstreams_said_of_the_root_is_shown_and_servfail_is_no_fault_of_a_site_without_internet():
    facts = having("upstreams", asked={"192.0.2.1": "SERVFAIL"})

    assert wrong(facts) == []
    assert "192.0.2.1 (says SERVFAIL)" in finding("forward.upstreams", facts).seen


def test_who_has_the_port_of_web_is_named_unless_that_is_us():
    holder = Holder(kind="tcp", address="127.0.0.1", pid=77, name="prometheus")
    facts = msgspec.structs.replace(having("bridge", web_phase="down"), web_holders=(holder,))
    own = msgspec.structs.replace(facts, web_holders=(msgspec.structs.replace(holder, pid=12),))

    assert "prometheus (pid 77)" in finding("bridge.web", facts).seen
    assert "web.listen" in finding("bridge.web", facts).todo
    assert "prometheus" not in finding("bridge.web", own).seen


def test_many_javas_are_one_finding_with_their_pids():
    jvms = (*(Jvm(pid=pid) for pid in range(1, 8)), Jvm(pid=9, ttl_s=60, source="-D"), Jvm(pid=10, ttl_s=1))
    facts = msgspec.structs.replace(GOOD, jvms=jvms)
    late, soon = [one for one in judge(facts, SETTING) if one.id == "java.ttl"]

    assert (
        "(pid 1, 2, 3, 4, 5, and 2 more) keeps every address 30 s; java (pid 9) keeps every address 60 s" in late.seen
    )
    assert "pid 10" in soon.seen
    assert wrong(facts) == [("java.ttl", "warning")]


def test_where_ipv6_is_off_the_entry_to_take_out_is_named():
    assert '"[::1]:53"' in finding("bridge.listen", having("bridge", missing=("[::1]:53",))).todo
    assert "IPv6" not in finding("bridge.listen", having("bridge", missing=("10.9.9.9:53",))).todo


@pytest.mark.parametrize(
    ("writers", "maker", "todo", "command"),
    [
        ((("dhclient", 812),), "", "dhclient (pid 812)", ""),
        ((), "NetworkManager", "the file says NetworkManager", ""),
        ((), "", "kernel", "auditctl -w /etc/resolv.conf -p wa"),
    ],
)
def test_who_fights_for_resolv_conf_is_named_or_how_to_find_it(writers, maker: str, todo: str, command: str):
    fought = having("guard", fought_s=20.0)
    resolv = msgspec.structs.replace(fought.resolv, maker=maker, ours=False)
    found = finding("guard.fight", msgspec.structs.replace(fought, writers=writers, resolv=resolv))

    assert todo in found.todo
    assert found.command == command


def test_in_a_container_with_the_bridge_inside_an_empty_file_is_no_fault_and_a_foreign_one_is_for_the_guard():
    inside = msgspec.structs.replace(having("system", container="docker", systemd=False), guard=Guard())
    empty = msgspec.structs.replace(inside, resolv=ResolvFile(kind="missing", servers=()))
    foreign = msgspec.structs.replace(
        inside, resolv=ResolvFile(servers=("192.0.2.1",)), answers={"192.0.2.1": "NXDOMAIN"}
    )
    ours = finding("resolv.ours", foreign)

    assert wrong(empty) == [("resolv.file", "warning")]
    assert ours.command == "nacosdns resolvconf guard"
    assert "--dns" not in ours.todo


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


def holder_on(place: str) -> Holder:
    address, _, port = place.rpartition(":")
    return Holder(kind="udp", address=address.strip("[]"), port=int(port), pid=77, name="python3")


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:25315", "127.0.0.1:25315"),
        ("127.0.0.1:25315", "0.0.0.0:25315"),
        ("[::1]:25315", "[::1]:25315"),
        ("127.0.0.1:53", "127.0.0.1:53"),
        ("[::1]:53", "[::1]:53"),
    ],
)
def test_who_has_a_port_of_listen_is_named_when_the_bridge_does_not_run(listen: str, address: str):
    held = (holder_on(address),)
    down = msgspec.structs.replace(having("bridge", error="nacosdns is not running", pid=0, children=()), holders=held)
    setting = Setting(own="", agent=False, listen=(listen,))

    assert finding("bridge.running", down, setting).seen == f"{listen} is held by python3 (pid 77)"
    assert "server.listen" in finding("bridge.running", down, setting).todo


@pytest.mark.parametrize("address", ["127.0.0.1:25316", "127.0.0.2:25315", "127.0.0.1:53", "[::1]:25315"])
def test_who_has_another_port_or_address_is_not_in_the_way_of_a_start(address: str):
    held = (holder_on(address),)
    down = msgspec.structs.replace(having("bridge", error="nacosdns is not running"), holders=held)

    assert finding("bridge.running", down, Setting(listen=("127.0.0.1:25315",))).seen == "nacosdns is not running"


def test_who_has_another_port_of_listen_is_not_on_port_53():
    held = (holder_on("127.0.0.1:5353"),)
    down = msgspec.structs.replace(having("bridge", error="nacosdns is not running"), holders=held)

    setting = Setting(listen=("127.0.0.1:53", "127.0.0.1:5353"))
    assert finding("port.53", down, setting).seen == "port 53 is free"
    assert finding("bridge.running", down, setting).seen == "127.0.0.1:5353 is held by python3 (pid 77)"


def test_the_same_facts_give_the_same_findings():
    assert judge(GOOD, SETTING) == judge(GOOD, SETTING)
    assert msgspec.json.decode(msgspec.json.encode(judge(GOOD, SETTING)), type=tuple[Finding, ...]) == judge(
        GOOD, SETTING
    )


def test_what_nacos_refuses_is_said_once_with_what_to_do_and_not_called_good():
    spaces = tuple(Namespace(name=name, connected=True, refused="403 no right (user 'dns')") for name in ("a", "b"))
    findings = [one for one in judge(having("bridge", namespaces=spaces), SETTING) if one.id.startswith("nacos")]

    assert [(one.id, one.severity.value) for one in findings] == [("nacos.reachable", "ok"), ("nacos.login", "error")]
    assert findings[1].seen == "Nacos refuses namespace a, b: 403 no right (user 'dns')"
    assert "the right to read namespace a, b" in findings[1].todo


@pytest.mark.parametrize(
    ("groups", "seen"),
    [
        ((listed("G", 0), listed("H", 0)), "namespace public holds no service at all in group G, H"),
        (
            (listed("G", 0, strangers=4),),
            "namespace public holds no service at all in group G, not one of the 4 that we know from before",
        ),
        ((listed("G", 2), listed("H", 0)), "group H of namespace public holds no service at all"),
        (
            (listed("G", 2, strangers=1),),
            "group G of namespace public holds none of the 1 service that we know from before",
        ),
    ],
)
def test_a_namespace_without_the_services_that_are_meant_is_told(groups: tuple[Listed, ...], seen: str):
    facts = having("bridge", catalogues=groups, namespaces=(space(since_s=3.2),))

    assert finding("nacos.namespace", facts).seen == f"{seen}; connected to Nacos 3 s ago"


@pytest.mark.parametrize("state", [{"connected": False, "error": "refused"}, {"connected": True, "refused": "403"}])
def test_a_namespace_that_cannot_be_read_is_not_called_empty(state: dict[str, object]):
    facts = having("bridge", catalogues=(listed("G", 0),), namespaces=(Namespace(name="public", **state),))

    assert "nacos.namespace" not in [name for name, _ in wrong(facts)]


def test_a_young_connection_is_said_beside_what_is_protected_and_an_old_one_is_not():
    young, old = (having("bridge", protected=1, namespaces=(space(since_s=age),)) for age in (3.0, 4000.0))

    assert finding("nacos.protection", young).seen.endswith("; connected to Nacos 3 s ago")
    assert "connected" not in finding("nacos.protection", old).seen


def test_the_brake_is_told_with_its_numbers():
    facts = having("bridge", brake_s=12.0, brake=Brake(services=6, known=21, kept=18))

    assert "(18 instances; 6 of 21 services lost most of theirs)" in finding("nacos.brake", facts).seen


def test_services_without_a_healthy_instance_are_counted_and_a_few_named_with_what_is_answered():
    named = tuple((f"public/G/s{n}", "none healthy: no answer by policy" if n == 1 else "all") for n in range(3))
    found = finding("services.unhealthy", having("bridge", unhealthy=9, unhealthy_named=named))

    assert found.seen == (
        "9 services without a healthy instance: public/G/s0, public/G/s2 (all); "
        "public/G/s1 (none healthy: no answer by policy); and 6 more"
    )


def test_the_time_of_an_answer_is_shown():
    facts = having("nacos", servers=(NacosServer(name="10.0.0.5:8848", version="2.3.2", took_s=0.012),))

    assert finding("nacos.reachable", facts).seen.endswith("HTTP and gRPC answer in 12 ms")
