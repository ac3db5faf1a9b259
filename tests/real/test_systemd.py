"""The units of deploy/systemd under a real systemd as PID 1, installed as their README says, line by line."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.nacos_server import FakeNacos
from fakes.running import exchange, packet, until
from fakes.systemd_host import PacedThere, SystemdHost, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
README = (ROOT / "deploy" / "systemd" / "README.md").read_text(encoding="utf-8")
SERVICE, SOCKET, GUARD = "nacosdns.service", "nacosdns.socket", "nacosdns-guard.service"
NAME = "orders.nacos.internal"
TRUTH = bytes([10, 0, 0, 1])
CONFIG = "/etc/nacosdns/nacosdns.toml"
STATIC = """
[[static]]
name = "orders"
instances = [{ ip = "10.0.0.1", port = 80 }]
"""
# pip makes the program of /opt/source and leaves the libraries to those of the tests.
QUICK = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": "/opt/libraries"}
BIND = 1 << 10  # CAP_NET_BIND_SERVICE
RESOURCE = 1 << 24  # CAP_SYS_RESOURCE: without it no systemd can raise a limit or lower an OOM score
NEW_RELEASE = """
rm -rf /opt/nacosdns-0.1.1
cp -a /opt/nacosdns-0.1.0 /opt/nacosdns-0.1.1
cd /opt/nacosdns-0.1.1/lib/python3.*/site-packages
sed -i 's/^Version: .*/Version: 0.1.1/' nacosdns-*.dist-info/METADATA
"""
TURN = "ln -s /opt/nacosdns-{} /opt/nacosdns.new && mv -T /opt/nacosdns.new /opt/nacosdns"
PROBE = f"""
[Unit]
Wants=nss-lookup.target {SERVICE}
After=nss-lookup.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/dig +time=5 +tries=1 +short @127.0.0.1 {NAME}
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdHost]:
    lacking = missing()
    if lacking and os.environ.get("NACOSDNS_REQUIRE_REAL") == "1":
        pytest.fail(f"a real systemd needs {', '.join(lacking)}")
    if lacking:
        pytest.skip(f"a real systemd needs {', '.join(lacking)}")
    with SystemdHost(tmp_path_factory.mktemp("systemd")) as host:
        install(host)
        yield host


def install(host: SystemdHost) -> None:
    """Every line of the README's first block, as it stands there."""
    [block] = re.findall(r"```\n(python3 -m venv.*?)```", README, re.DOTALL)
    host.run("sh", "-c", "cat >> config/agent.toml", said=STATIC)
    for line in block.splitlines():
        host.run("bash", "-ec", line, said="secret", **QUICK)
        if "pip install" in line:
            host.run(
                "sh", "-c", "cd /opt/nacosdns-0.1.0/lib/python3.*/site-packages && echo /opt/libraries > tests.pth"
            )


@pytest.fixture
def host(machine: SystemdHost) -> SystemdHost:
    """The machine, with both units running and all of the bridge up."""
    machine.run("systemctl", "start", SOCKET, SERVICE)
    until(lambda: "4 of 4 processes up" in machine.show(SERVICE, "StatusText"), 30.0, "all processes")
    return machine


def main_pid(host: SystemdHost) -> int:
    return int(host.show(SERVICE, "MainPID"))


def processes(host: SystemdHost) -> dict[int, dict[str, str]]:
    """What /proc/PID/status says of every process of the service."""
    group = host.show(SERVICE, "ControlGroup")
    pids = host.run("sh", "-c", f"cat $(find /sys/fs/cgroup -path '*{group}/cgroup.procs')").split()
    files = {int(pid): host.path(f"/proc/{pid}/status").read_text(encoding="utf-8") for pid in set(pids)}
    return {pid: dict(line.split(":\t", 1) for line in text.splitlines()) for pid, text in files.items()}


def asked(host: SystemdHost, *, seconds: float = 5.0) -> bytes:
    """The address that the static service has, as a client there is told it."""
    return host.there(lambda: exchange(packet(NAME), 53, seconds=seconds))[-4:]


def fared(client: PacedThere) -> tuple[int, int]:
    """How many queries of a client were not answered, and how many not with what is true."""
    print(f"{len(client.sent)} queries, the longest waited {client.longest_s:.2f} s")  # noqa: T201  # for pytest -rP
    return len(client.lost()), sum(reply[-4:] != TRUTH for reply in client.replies.values())


def slow_starts(host: SystemdHost) -> list[str]:
    """Starts without a front for 2 s, on a machine with much else to do: the supervisor answers SERVFAIL then."""
    return [line for line in host.journal("-u", SERVICE) if "level=warning event=front.covered" in line]


# How it runs


def test_it_is_ready_and_says_how_it_is(host: SystemdHost) -> None:
    facts = {fact: host.show(SERVICE, fact) for fact in ("ActiveState", "SubState", "Type", "UnitFileState", "Result")}

    assert facts == {
        "ActiveState": "active",
        "SubState": "running",
        "Type": "notify",
        "UnitFileState": "enabled",
        "Result": "success",
    }
    status = host.run("systemctl", "status", "--no-pager", "nacosdns")
    assert 'Status: "answering on 127.0.0.1:53, [::1]:53; 4 of 4 processes up"' in status


def test_nothing_of_it_runs_as_root_or_has_rights_beyond_the_low_ports(host: SystemdHost) -> None:
    user = host.run("id", "-u", "nacosdns")
    found = processes(host)
    main = found.pop(main_pid(host))

    assert len(found) == 4  # keeper, web, and two fronts, one of which stands by
    assert user != "0"
    for status in (main, *found.values()):
        assert set(status["Uid"].split()) == {user}
        assert int(status["CapBnd"], 16) == BIND
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(main["CapEff"], 16) == BIND
    assert {int(status[kind], 16) for status in found.values() for kind in ("CapPrm", "CapEff", "CapAmb")} == {0}


def test_what_the_unit_shuts_is_shut(host: SystemdHost) -> None:
    host.run("sh", "-ec", "echo seen > /tmp/of-others; echo seen > /root/of-others; mknod -m 666 /dev/of-others c 1 3")
    inside = ("nsenter", "-t", str(main_pid(host)), "-m")
    shut = "for place in /usr /etc /opt/nacosdns /proc/sys/net /sys/kernel; do ! touch $place/x 2> /dev/null; done"
    host.run(*inside, "sh", "-ec", shut)
    host.run(*inside, "sh", "-ec", "for place in /tmp /var/lib/nacosdns /run/nacosdns; do touch $place/x; done")

    assert host.run(*inside, "sh", "-ec", "cd /; ls tmp root home").split() == ["home:", "root:", "tmp:", "x"]
    assert "of-others" not in host.run(*inside, "ls", "/dev")
    assert host.run("stat", "-c", "%U %a", "/var/lib/nacosdns") == "nacosdns 750"


def test_it_is_bounded_where_this_machine_can_bound(host: SystemdHost) -> None:
    group = host.show(SERVICE, "ControlGroup")
    bounds = {
        "memory.limit_in_bytes": str(1 << 30),
        "memory.max": str(1 << 30),
        "cpu.cfs_quota_us": "300000",
        "cpu.max": "300000 100000",
        "cpu.shares": "2048",
        "cpu.weight": "200",
        "pids.max": "256",
    }
    names = " -o ".join(f"-path '*{group}/{name}'" for name in bounds)
    files = host.run("sh", "-c", f"find /sys/fs/cgroup {names}").split()

    assert {file.rpartition("/")[2]: host.path(file).read_text().strip() for file in files} == {
        file.rpartition("/")[2]: bounds[file.rpartition("/")[2]] for file in files
    }
    told = [host.show(SERVICE, fact) for fact in ("MemoryMax", "CPUQuotaPerSecUSec", "CPUWeight", "TasksMax")]
    assert told == [str(1 << 30), "3s", "200", "256"]


def test_it_is_killed_after_all_others_where_systemd_may_say_so(host: SystemdHost) -> None:
    score = {pid: int(host.path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in processes(host)}
    may = int(re.findall(r"CapEff:\t(.*)", host.path("/proc/1/status").read_text())[0], 16) & RESOURCE
    first = -500 if may else 0

    assert score[main_pid(host)] == min(score.values()) == first
    assert sorted(score.values()) == [first, first, first, first + 200, first + 400]


def test_the_sockets_are_those_that_systemd_holds(host: SystemdHost) -> None:
    def sockets(pid: int) -> set[str]:
        links = (str(file.readlink()) for file in host.path(f"/proc/{pid}/fd").iterdir())
        return {link for link in links if link.startswith("socket:")}

    inodes = host.run("sh", "-c", "cat /proc/net/udp /proc/net/udp6 /proc/net/tcp /proc/net/tcp6 | grep ':0035 '")
    held = {f"socket:[{line.split()[9]}]" for line in inodes.splitlines()}

    assert len(held) == 4
    assert held <= sockets(1)
    assert held <= sockets(main_pid(host))
    assert host.run("dig", "+short", "@127.0.0.1", NAME) == "10.0.0.1"
    assert host.run("dig", "+short", "+tcp", "@::1", NAME) == "10.0.0.1"
    assert {line.split()[2] for line in host.run("ss", "-Hltn").splitlines() if ":53 " in line} == {"1024"}  # backlog


def test_its_log_is_in_the_journal(host: SystemdHost) -> None:
    lines = host.journal("-u", SERVICE, "-t", "nacosdns")

    assert any("event=front.reads" in line for line in lines)
    assert not any("Traceback" in line for line in lines)
    assert host.journal("-t", "python", "-t", "python3") == []


def test_nacos_is_heard_from_inside_the_sandbox(host: SystemdHost) -> None:
    async def serve() -> None:
        async with FakeNacos(port=8848).running() as nacos:
            nacos.services["public", "DEFAULT_GROUP", "pay"] = [{"ip": "10.0.0.7", "port": 80}]
            async with asyncio.timeout(40):
                while await asyncio.to_thread(found) != "10.0.0.7":
                    await asyncio.sleep(0.1)

    def found() -> str:
        return host.run("dig", "+short", "+time=3", "+tries=1", "@127.0.0.1", "pay.nacos.internal")

    host.there(lambda: asyncio.run(serve()))

    assert found() == "10.0.0.7"  # also when Nacos is gone again
    assert "pay" in host.run("nacosdns", "services")


# What an operator does


def test_who_needs_names_starts_after_it_and_no_network_before_it(host: SystemdHost) -> None:
    host.run("systemctl", "stop", SOCKET, SERVICE)
    host.run("systemctl", "stop", "nss-lookup.target")
    host.run("sh", "-c", "cat > /etc/systemd/system/probe.service", said=PROBE)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "start", "probe.service")
    ready, looked = (
        int(host.show(unit, fact))
        for unit, fact in (
            (SERVICE, "ActiveEnterTimestampMonotonic"),
            ("probe.service", "ExecMainStartTimestampMonotonic"),
        )
    )

    assert 0 < ready <= looked
    assert host.journal("-u", "probe.service", "-t", "dig")[-1] == "10.0.0.1"
    assert host.show("network-online.target", "ActiveState") == "inactive"
    assert not re.search(r"\bnetwork", host.show(SERVICE, "After") + host.show(SOCKET, "After"))


def test_a_restart_under_load_loses_nothing(host: SystemdHost) -> None:
    before, too_slow = main_pid(host), len(slow_starts(host))
    with PacedThere(host, NAME, per_second=500, patience_s=20.0) as client:
        until(lambda: len(client.replies) > 200, what="answers")
        host.run("systemctl", "restart", "nacosdns")
        sent = len(client.sent)
        until(lambda: len(client.sent) > sent + 200, what="more queries")
    lost, wrong = fared(client)

    assert lost == 0
    assert wrong == 0 or len(slow_starts(host)) > too_slow
    assert main_pid(host) != before


def test_a_reload_takes_a_good_configuration_and_refuses_a_bad_one(host: SystemdHost) -> None:
    file = host.path(CONFIG)
    good = file.read_text(encoding="utf-8")
    pid = main_pid(host)
    host.run("systemctl", "log-level", "debug")
    try:
        file.write_text(good.replace("10.0.0.1", "10.0.0.2"), encoding="utf-8")
        host.run("systemctl", "reload", "nacosdns")
        until(lambda: asked(host) == bytes([10, 0, 0, 2]), what="the new configuration")
        file.write_text(good + "nonsense = 1\n", encoding="utf-8")
        refused = host.tries("systemctl", "reload", "nacosdns")
        host.run("systemctl", "kill", "-s", "HUP", "--kill-whom=main", "nacosdns")
        until(
            lambda: any("reload.refused" in line for line in host.journal("-u", SERVICE, "-p", "err")),
            what="the refusal",
        )

        until(lambda: host.show(SERVICE, "SubState") == "running", what="the end of the reload")
        host.run("systemctl", "log-level", "info")
        of_ours = rf"{SERVICE}: Got notification message from PID {pid} \((RELOADING|READY)="

        assert re.findall(of_ours, "\n".join(host.journal("_PID=1"))) == ["RELOADING", "READY"] * 2
        assert refused.returncode != 0
        assert any("nonsense" in line for line in host.journal("-u", SERVICE))
        assert asked(host) == bytes([10, 0, 0, 2])
        assert (main_pid(host), host.show(SERVICE, "ActiveState")) == (pid, "active")
    finally:
        file.write_text(good, encoding="utf-8")
        host.run("systemctl", "reload", "nacosdns")
    until(lambda: asked(host) == TRUTH, what="the old configuration")


def upgrades(host: SystemdHost, word: str) -> list[str]:
    """What the log says of upgrades that were ``done`` or ``failed``."""
    return [line for line in host.journal("-u", SERVICE) if f"event=upgrade.{word}" in line]


@pytest.mark.parametrize(
    ("release", "command"),
    [("0.1.1", "nacosdns upgrade"), ("0.1.0", "systemctl kill -s USR2 --kill-whom=main nacosdns")],
)
def test_an_upgrade_changes_the_code_and_nothing_that_systemd_sees(
    host: SystemdHost, release: str, command: str
) -> None:
    """To a new release beside the old one, and back."""

    def facts() -> list[str]:
        return [host.show(SERVICE, fact) for fact in ("MainPID", "ActiveState", "NRestarts", "ActiveEnterTimestamp")]

    host.run("bash", "-ec", NEW_RELEASE)
    host.run("bash", "-ec", TURN.format(release))
    before, done, children = facts(), len(upgrades(host, "done")), set(processes(host))
    with PacedThere(host, NAME, per_second=500, patience_s=10.0) as client:
        host.run(*command.split())
        until(lambda: len(upgrades(host, "done")) > done, 60.0, "the upgrade")

    assert f"release={release}" in upgrades(host, "done")[-1]
    assert facts() == before
    assert set(processes(host)) & children == {main_pid(host)}
    assert fared(client) == (0, 0)


def test_a_release_that_cannot_run_is_refused_with_a_reason_and_the_old_one_goes_on(host: SystemdHost) -> None:
    host.run("bash", "-ec", f"{NEW_RELEASE}echo 'raise ValueError(1)' >> nacosdns/front.py")
    before = set(processes(host))
    host.run("bash", "-ec", TURN.format("0.1.1"))
    try:
        refused = host.tries("nacosdns", "upgrade")
    finally:
        host.run("bash", "-ec", TURN.format("0.1.0"))

    assert refused.returncode == 1, refused
    assert "failed" in refused.stdout
    assert set(processes(host)) >= before
    assert asked(host) == TRUTH


def test_a_new_systemd_takes_over_sockets_and_service(host: SystemdHost) -> None:
    pid = main_pid(host)
    with PacedThere(host, NAME, per_second=200, patience_s=10.0) as client:
        host.run("systemctl", "daemon-reexec")
        host.run("systemctl", "reload", "nacosdns")

    assert fared(client) == (0, 0)
    assert (main_pid(host), host.show(SERVICE, "ActiveState")) == (pid, "active")


# What befalls it


def test_however_often_it_is_killed_it_comes_back_and_what_was_asked_meanwhile_is_answered(host: SystemdHost) -> None:
    kills = 8  # more than DefaultStartLimitBurst
    restarts = int(host.show(SERVICE, "NRestarts"))
    old: set[int] = set()
    with PacedThere(host, NAME, per_second=100, patience_s=30.0) as client:
        for number in range(1, kills + 1):
            until(lambda: main_pid(host) not in {0, *old}, 30.0, "a new main process")
            if number % 4 == 1:  # the others die while they start
                until(lambda: "4 of 4 processes up" in host.show(SERVICE, "StatusText"), 30.0, "all processes")
            old.update(processes(host))
            host.run("kill", "-9", str(main_pid(host)))
            until(lambda want=restarts + number: int(host.show(SERVICE, "NRestarts")) == want, 30.0, "a restart")
        until(lambda: host.show(SERVICE, "ActiveState") == "active", 30.0, "the last start")
    lost, _ = fared(client)

    assert lost <= 64  # what a front had read when it was killed
    assert not old & set(processes(host))
    assert not [pid for pid in old if host.path(f"/proc/{pid}").exists()]
    assert asked(host) == TRUTH


def test_one_that_cannot_start_leaves_what_is_asked_in_the_sockets_until_it_can(host: SystemdHost) -> None:
    file = host.path(CONFIG)
    good = file.read_text(encoding="utf-8")
    restarts = int(host.show(SERVICE, "NRestarts"))
    try:
        file.write_text("nonsense = 1\n", encoding="utf-8")
        refused = host.tries("systemctl", "restart", "nacosdns")
        with PacedThere(host, NAME, per_second=50, patience_s=30.0) as client:
            until(lambda: int(host.show(SERVICE, "NRestarts")) > restarts + 1, 30.0, "more tries")
            socket_unit = host.show(SOCKET, "ActiveState")
            file.write_text(good, encoding="utf-8")
            until(lambda: host.show(SERVICE, "ActiveState") == "active", 30.0, "a start")
    finally:
        file.write_text(good, encoding="utf-8")

    assert refused.returncode != 0
    assert socket_unit == "active"
    assert fared(client)[0] == 0


def test_one_that_hangs_is_killed_by_the_watchdog_and_started_again(host: SystemdHost) -> None:
    drop_in = "/etc/systemd/system/nacosdns.service.d"
    assert host.show(SERVICE, "WatchdogUSec") == "30s"
    host.run("mkdir", "-p", drop_in)
    host.run("sh", "-c", f"cat > {drop_in}/quick.conf", said="[Service]\nWatchdogSec=5\nTimeoutAbortSec=1\n")
    try:
        host.run("systemctl", "daemon-reload")
        host.run("systemctl", "restart", "nacosdns")
        restarts, pid = int(host.show(SERVICE, "NRestarts")), main_pid(host)
        host.run("kill", "-STOP", str(pid))
        until(lambda: int(host.show(SERVICE, "NRestarts")) > restarts, 60.0, "the watchdog")
        until(lambda: host.show(SERVICE, "ActiveState") == "active", 30.0, "the start")

        assert any("Watchdog timeout" in line for line in host.journal("-u", SERVICE))
        assert main_pid(host) != pid
        assert asked(host) == TRUTH
    finally:
        host.run("rm", "-r", drop_in)
        host.run("systemctl", "daemon-reload")
        host.run("systemctl", "restart", "nacosdns")


def test_the_guard_puts_our_address_back_and_stops_cleanly(host: SystemdHost) -> None:
    def first() -> str:
        servers = re.findall(r"^nameserver (\S+)", host.path("/etc/resolv.conf").read_text(), re.MULTILINE)
        return servers[0] if servers else ""

    host.run("install", "-m", "644", f"deploy/systemd/{GUARD}", "/etc/systemd/system/")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "enable", "--now", GUARD)
    try:
        until(lambda: first() == "127.0.0.1", what="our address in resolv.conf")
        host.run("sh", "-c", "echo nameserver 192.0.2.54 > /etc/resolv.conf")
        began = time.monotonic()
        until(lambda: first() == "127.0.0.1", 20.0, "our address in resolv.conf again")
        took = time.monotonic() - began
        host.run("systemctl", "reload", GUARD)
        until(lambda: any("192.0.2.54:53" in line for line in host.journal("-u", SERVICE)), what="the new upstream")

        assert took < 10.0
        assert host.show(GUARD, "ActiveState") == "active"
    finally:
        host.run("systemctl", "disable", "--now", GUARD)

    assert (host.show(GUARD, "Result"), host.show(GUARD, "ExecMainStatus")) == ("success", "0")
    host.run("nacosdns", "resolvconf", "restore")
    assert first() == "192.0.2.54"


def test_stopped_for_good_it_ends_well_and_nobody_listens(host: SystemdHost) -> None:
    host.run("systemctl", "stop", SOCKET, SERVICE)

    assert [host.show(unit, "ActiveState") for unit in (SOCKET, SERVICE)] == ["inactive", "inactive"]
    assert (host.show(SERVICE, "Result"), host.show(SERVICE, "ExecMainStatus")) == ("success", "0")
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with pytest.raises(ConnectionRefusedError):
            host.there(lambda kind=kind: _try(kind))
    names = [file.read_text() for file in host.path("/proc").glob("[0-9]*/comm")]
    assert names
    assert not [name for name in names if "nacosdns" in name]


def _try(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as client:
        client.settimeout(5.0)
        client.connect(("127.0.0.1", 53))
        client.send(packet(NAME))
        client.recv(512)
