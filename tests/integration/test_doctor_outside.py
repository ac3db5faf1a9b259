"""`nacosdns doctor` on those whom the bridge asks, and on what the running bridge was refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes import host_tree
from fakes.host_tree import process
from fakes.nacos_server import FakeNacos
from fakes.running import Bridge, free_port, until
from fakes.upstream import StubUpstream
from nacosdns import bridge_facts, doctoring, problems, report
from nacosdns.config import Cache, Config, Forward, Nacos, Server
from nacosdns.core import doctor
from nacosdns.edge import hostfacts
from nacosdns.edge.hostfacts import Tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nacosdns.core.finding import Finding

NOWHERE = Path("/nowhere/control.sock")
GARBAGE = b"\x1b]0;owned\x07\x1b[2J220 mail\r\nOK  all is well\x9b1m\r\n\r\n"
NO_NACOS = Nacos(servers=())


async def findings(root: Path, config: Config, password: str = "") -> dict[str, Finding]:
    """What the doctor says, the last of each id."""
    (root / "state").mkdir(exist_ok=True)
    facts = await doctoring.examine(config, password, Tree(str(root)), NOWHERE)
    return {one.id: one for one in doctor.judge(facts, doctoring.setting(config))}


def judged(root: Path, **sections: object) -> dict[str, Finding]:
    wanted: dict[str, object] = {"nacos": NO_NACOS, "cache": Cache(dir="/state")} | sections
    return asyncio.run(findings(host_tree.make(root, {}), Config(**wanted)))  # type: ignore[arg-type]  # its sections


def nacosdns(*words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "nacosdns.cli", *words]
    return subprocess.run(command, capture_output=True, check=False, timeout=30)


def rows(file: Path) -> dict[str, dict[str, str]]:
    done = nacosdns("doctor", "--json", "-c", str(file))
    return {row["id"]: row for row in json.loads(done.stdout)["findings"]}


# Nacos


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)  # a port that is closed with something unread is reset, and nothing is heard
    writer.write(GARBAGE)
    await writer.drain()
    writer.close()


def test_what_a_foreign_server_says_never_reaches_the_terminal_raw(tmp_path: Path) -> None:
    async def run() -> subprocess.CompletedProcess[bytes]:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        file = tmp_path / "n.toml"
        text = f'[nacos]\nservers = ["127.0.0.1:{port}"]\n[forward]\nupstreams = []\n[cache]\ndir = "{tmp_path}"\n'
        file.write_text(text, encoding="utf-8")
        async with server:
            return await asyncio.to_thread(nacosdns, "doctor", "-c", str(file))

    done = asyncio.run(run())
    lines = done.stdout.decode().split("\n")

    assert any("mail" in line and "\\x1b" in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("OK  all") for line in lines)


def asked(root: Path, ask: Callable[[FakeNacos], Awaitable[dict[str, Finding]]], **how: object) -> dict[str, Finding]:
    async def run() -> dict[str, Finding]:
        async with FakeNacos(**how).running() as nacos:  # type: ignore[arg-type]  # its fields
            return await ask(nacos)

    host_tree.make(root, {})
    return asyncio.run(run())


def config_of(nacos: Nacos) -> Config:
    return Config(nacos=nacos, cache=Cache(dir="/state"), forward=Forward(upstreams=()))


def test_a_grpc_port_in_nacos_servers_is_said_with_the_port_to_write(tmp_path: Path) -> None:
    ports: list[int] = []

    async def ask(nacos: FakeNacos) -> dict[str, Finding]:
        ports.append(nacos.port)
        return await findings(tmp_path, config_of(Nacos(servers=(f"127.0.0.1:{nacos.port + 1000}",))))

    found = asked(tmp_path, ask)["nacos.reachable"]

    assert "is the gRPC port" in found.seen
    assert f"127.0.0.1:{ports[0]}:" in found.todo


def test_a_login_below_another_path_names_context_path_and_not_the_password(tmp_path: Path) -> None:
    async def ask(nacos: FakeNacos) -> dict[str, Finding]:
        section = Nacos(servers=(nacos.address,), username="dns", context_path="/registry")
        return await findings(tmp_path, config_of(section), "right")

    found = asked(tmp_path, ask, users={"dns": "right"})["nacos.login"]

    assert "status 404" in found.seen
    assert "nacos.context_path" in found.todo
    assert "password" not in found.todo


@pytest.mark.parametrize("server", ["127.0.0.1:1", "no.such.host.invalid:8848"])
def test_a_login_that_could_not_be_tried_is_not_blamed_on_the_password(
    tmp_path: Path, monkeypatch, server: str
) -> None:
    def none(*_words: object, **_named: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", none)  # nobody outside is asked for the name
    found = judged(tmp_path, nacos=Nacos(servers=(server,), username="dns"), forward=Forward(upstreams=()))

    assert found["nacos.reachable"].severity.value == "error"
    assert found["nacos.login"].severity.value == "warning"
    assert "nacos.reachable" in found["nacos.login"].todo


def test_names_of_services_reach_the_terminal_spelled_out_in_every_command(tmp_path: Path) -> None:
    name = "or\\u001b[2Jders\\u202e"
    text = (
        "[nacos]\nservers = []\n[forward]\nupstreams = []\n"
        f'[[static]]\nname = "{name}"\ninstances = [{{ ip = "10.0.0.1", port = 80 }}]\n'
    )
    running = Bridge(tmp_path, text=text, modules={}).up()
    verbs = (
        ("services",),
        ("status",),
        ("cache", "list"),
        ("cache", "flush", "or\x1b[2Jders"),
        ("ask", "or\x1b.nacos"),
    )
    try:
        done = {verb: nacosdns(*verb, "-c", str(running.file)) for verb in verbs}
    finally:
        running.close()

    assert "or\\x1b[2Jders\\u202e" in done["services",].stdout.decode()
    for verb, one in done.items():
        lines = one.stdout.decode().split("\n") + one.stderr.decode().split("\n")
        assert all(line.isprintable() for line in lines), verb
        assert len(lines) > 2, verb


# Upstreams


@pytest.fixture
def stub() -> Iterator[StubUpstream]:
    with StubUpstream() as running:
        yield running


def test_each_upstream_is_asked_now_and_what_it_said_is_shown(tmp_path: Path, stub: StubUpstream) -> None:
    stub.rcode("", "NS", "NOERROR")
    found = judged(tmp_path, forward=Forward(upstreams=(stub.address,)))["forward.upstreams"]

    assert found.severity.value == "ok"
    assert f"{stub.address} (says NOERROR)" in found.seen
    assert stub.count(rtype="NS", transport="udp") == 1


def test_an_upstream_that_is_dead_is_told_before_anybody_asked_it(tmp_path: Path, stub: StubUpstream) -> None:
    dead = f"127.0.0.1:{free_port()}"
    one = judged(tmp_path / "one", forward=Forward(upstreams=(stub.address, dead)))["forward.upstreams"]
    all_dead = judged(tmp_path / "all", forward=Forward(upstreams=(dead,)))["forward.upstreams"]

    assert one.severity.value == "warning"
    assert f"{dead} (Connection refused)" in one.seen
    assert all_dead.severity.value == "error"
    assert "no upstream answers" in all_dead.seen


def test_an_upstream_that_refuses_us_is_told(tmp_path: Path, stub: StubUpstream) -> None:
    stub.rcode("", "NS", "REFUSED")
    found = judged(tmp_path, forward=Forward(upstreams=(stub.address,)))["forward.upstreams"]

    assert found.severity.value == "error"
    assert "REFUSED" in found.seen


def test_an_upstream_that_is_ourselves_is_a_loop_and_is_not_asked(tmp_path: Path, stub: StubUpstream) -> None:
    own = Server(listen=(stub.address,))
    alone = judged(tmp_path / "one", server=own, forward=Forward(upstreams=(stub.address,)))
    wide = Server(listen=(f"0.0.0.0:{stub.address.rpartition(':')[2]}",))
    everywhere = judged(tmp_path / "two", server=wide, forward=Forward(upstreams=(stub.address,)))

    for found in (alone, everywhere):
        assert found["forward.loop"].severity.value == "error"
        assert stub.address in found["forward.loop"].seen
        assert found["forward.loop"].todo
        assert "forward.upstreams" not in found
    assert stub.count(rtype="NS") == 0


def test_check_says_that_an_upstream_is_ourselves_and_the_bridge_starts_all_the_same(
    tmp_path: Path, stub: StubUpstream
) -> None:
    port = free_port()
    text = f'[nacos]\nservers = []\n[forward]\nupstreams = ["127.0.0.1:{port}", "{stub.address}"]\n'
    running = Bridge(tmp_path, text=text, modules={}, port=port).up()
    try:
        done = nacosdns("check", "-c", str(running.file))
        found = rows(running.file)["forward.loop"]
    finally:
        running.close()

    assert done.returncode == 2
    assert f"forward.upstreams: 127.0.0.1:{port} is ourselves: a loop; write" in done.stderr.decode()
    assert f"127.0.0.1:{port}" in found["seen"]


# Files


def test_a_static_file_that_is_refused_is_said_as_check_says_it(tmp_path: Path) -> None:
    root = host_tree.make(tmp_path, {"etc/static.toml": '[[static]]\nnam = "orders"\n'})
    found = judged(root, static_file="/etc/static.toml")["static.file"]
    (root / "etc/static.toml").write_text('[[static]]\nname = "orders"\ninstances = []\n', encoding="utf-8")
    good = judged(root, static_file="/etc/static.toml")["static.file"]
    gone = judged(root, static_file="/etc/nothing.toml")["static.file"]

    assert found.severity.value == gone.severity.value == "error"
    assert 'did you mean "name"' in found.seen
    assert good.severity.value == "ok"


def test_a_database_that_was_set_aside_is_told_without_the_files_beside_it(tmp_path: Path) -> None:
    names = ("cache.db", "cache.db.damaged-20270101T000000", "cache.db.damaged-20270101T000000-wal")
    found = judged(host_tree.make(tmp_path, {f"state/{name}": "x" for name in names}))["disk.damaged"]

    assert found.seen.endswith(": /state/cache.db.damaged-20270101T000000")
    assert found.command == "rm /state/cache.db.damaged-*"


def test_programs_that_write_resolv_conf_are_found_with_their_pids(tmp_path: Path) -> None:
    files = process(812, "dhclient") | process(7, "NetworkManager") | process(9, "sshd")

    assert hostfacts.writers(Tree(str(host_tree.make(tmp_path, files)))) == (("NetworkManager", 7), ("dhclient", 812))


# The running bridge


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Bridge]:
    running = Bridge(tmp_path, text="[nacos]\nservers = []\n[forward]\nupstreams = []\n", modules={}).up()
    yield running
    running.close()


def test_a_refused_reload_and_a_bad_file_are_said_while_the_bridge_runs_on(bridge: Bridge) -> None:
    good = bridge.file.read_text(encoding="utf-8")
    bridge.file.write_text(good.replace("[nacos]", "[nacoz]"), encoding="utf-8")
    bridge.signal(signal.SIGHUP)
    bridge.wait_for("reload.refused")
    refused = rows(bridge.file)
    bridge.file.write_text(good, encoding="utf-8")
    bridge.signal(signal.SIGHUP)
    until(lambda: "bridge.reload" not in rows(bridge.file))
    mended = rows(bridge.file)

    assert refused["config.file"]["severity"] == refused["bridge.reload"]["severity"] == "error"
    assert "nacoz" in refused["bridge.reload"]["seen"]
    assert refused["bridge.running"]["severity"] == "ok"
    assert not {"config.file", "bridge.reload"} & set(mended)


def test_a_port_of_web_that_another_program_has_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = "[nacos]\nservers = []\n[forward]\nupstreams = []\n"
        running = Bridge(tmp_path, text=text, modules={}, web_port=port).up(3)
        try:
            found = rows(running.file)["bridge.web"]
        finally:
            running.close()

    assert f"(pid {os.getpid()})" in found["seen"]
    assert "web.listen" in found["todo"]


def test_the_head_of_status_says_that_nobody_is_there(tmp_path: Path) -> None:
    dead = f"127.0.0.1:{free_port()}"
    text = f'[nacos]\nservers = ["127.0.0.1:1"]\n[forward]\nupstreams = ["{dead}"]\n'
    running = Bridge(tmp_path, text=text, modules={}).up()
    try:
        until(lambda: b"\nNO NACOS: " in nacosdns("status", "-c", str(running.file)).stdout)
        head = nacosdns("status", "-c", str(running.file)).stdout.decode().partition("\n\n")[0]
    finally:
        running.close()

    assert "NO NACOS: 127.0.0.1:1" in head


@pytest.mark.parametrize(
    ("health", "said"), [(("down", "loop"), True), (("up", "down"), False), (("doubted",), False), ((), False)]
)
def test_the_head_of_status_says_that_no_upstream_is_there(health: tuple[str, ...], *, said: bool) -> None:
    upstreams = [{"address": f"192.0.2.{place}:53", "health": word} for place, word in enumerate(health)]
    head = report.status({"supervisor": {}, "fronts": {"1": {"error": "is down"}, "2": {"upstreams": upstreams}}})

    assert ("NO UPSTREAM: 192.0.2.0:53 is down, 192.0.2.1:53 is loop" in head) is said


UP, DOWN, LOOP = ({"address": "192.0.2.1:53", "health": word, "last_error": word} for word in ("up", "down", "loop"))


@pytest.mark.parametrize(
    ("fronts", "health"),
    [((UP, LOOP), "loop"), ((LOOP, UP), "loop"), ((UP, DOWN), "down"), ((DOWN, LOOP), "loop"), ((UP, UP), "up")],
)
def test_a_standby_that_asked_nobody_does_not_hide_what_the_front_that_serves_has_seen(fronts, health: str) -> None:
    status = {"fronts": {str(slot): {"upstreams": [one]} for slot, one in enumerate(fronts)}}
    (found,) = bridge_facts.facts_of(status, Tree()).upstreams

    assert (found.address, found.health, found.error) == ("192.0.2.1:53", health, health)
    assert ("NO UPSTREAM" in report.status({"supervisor": {}} | status)) is (health != "up")


@pytest.mark.parametrize("own", [{}, {"reload": None, "upgrade": None}, {"reload": {}, "upgrade": {"state": "done"}}])
def test_a_bridge_that_tells_of_no_refusal_has_none(own: dict[str, object]) -> None:
    found = bridge_facts.facts_of({"supervisor": own}, Tree())

    assert (found.reload_refused, found.reload_s, found.upgrade_failed, found.web_fault) == ("", None, "", "")


def test_a_bridge_tells_what_it_was_refused() -> None:
    children = [{"pid": 5, "role": "front", "phase": "ready"}, {"pid": 6, "role": "web", "phase": "starting"}]
    reload, upgrade = {"refused": "no such key", "at": 1.0}, {"state": "failed", "reason": "it does not import"}
    own = {"reload": reload, "upgrade": upgrade, "children": children}
    found = bridge_facts.facts_of({"supervisor": own}, Tree())

    assert found.reload_refused == "no such key"
    assert found.reload_s is not None
    assert found.upgrade_failed == "it does not import"
    assert found.web_phase == "starting"


def child(role: str, **state: object) -> dict[str, object]:
    return {"pid": 5, "role": role, "slot": 3, "phase": "ready"} | state


def test_a_part_that_ended_once_is_not_told_and_one_that_does_so_again_is_as_in_status() -> None:
    def ends(failures: int, *, covered: bool = False) -> tuple[str, ...]:
        own = {"children": [child("front", failures=failures, reason="killed: hangs")], "covered": covered}
        return bridge_facts.facts_of({"supervisor": own}, Tree()).ends

    assert ends(1) == ()
    assert ends(3) == ("front 3, 3 times in a row: killed: hangs",)
    assert ends(1, covered=True) == ("front 3: killed: hangs",)


def test_a_stopped_part_is_not_one_that_failed() -> None:
    own = {"children": [child("keeper", phase="hangs", stopped=True), child("web", phase="hangs")]}
    found = bridge_facts.facts_of({"supervisor": own, "keeper": {"error": "no answer within 1 s"}}, Tree())

    assert found.stopped == (("the keeper", 5),)
    assert (found.failed, found.passing) == ((), ())


def test_upstreams_that_flap_are_those_of_status() -> None:
    upstream = {"address": "192.0.2.1:53", "health": "up", "last_error": "timeout"}
    upstream |= {"changes_10min": 99, "changed_s": 1.0, "since_change_s": 1.0}
    status = {"fronts": {"3": {"upstreams": [upstream]}}}
    said = [line.partition(": ")[2] for line in problems.found(status) if line.startswith("UPSTREAM FLAPS")]

    assert len(said) == 1
    assert list(bridge_facts.facts_of(status, Tree()).flaps) == said


def test_an_address_server_that_is_dead_is_named(tmp_path: Path) -> None:
    dead = f"127.0.0.1:{free_port()}"
    found = judged(tmp_path, nacos=Nacos(servers=(), endpoint=dead))

    assert dead in found["nacos.endpoint"].seen
    assert "unknown" not in found


@pytest.mark.parametrize(("content", "seen"), [("", "is empty"), ("\n", "is empty"), (None, "cannot be read")])
def test_a_password_file_without_a_password_is_told(tmp_path: Path, content: str | None, seen: str) -> None:
    root = host_tree.make(tmp_path, {"etc/nacosdns/password": content})
    found = hostfacts.secret(Tree(str(root)), "/etc/nacosdns/password")

    assert seen in found.error


def test_resolvconf_show_names_no_address_of_ours_among_the_upstreams(tmp_path: Path) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\nnameserver 127.0.0.2\nnameserver 192.0.2.1\n", encoding="utf-8")
    file = tmp_path / "n.toml"
    text = (
        f'[server]\nlisten = ["127.0.0.1:53", "127.0.0.2:53"]\n[cache]\ndir = "{tmp_path}"\n'
        f'[host]\nresolv_conf = "{resolv}"\n[forward]\nresolv_conf = "{resolv}"\n'
    )
    file.write_text(text, encoding="utf-8")
    shown = json.loads(nacosdns("resolvconf", "show", "--json", "-c", str(file)).stdout)

    assert shown["servers"] == ["127.0.0.1", "127.0.0.2", "192.0.2.1"]
    assert shown["upstreams"] == ["192.0.2.1"]


@pytest.mark.parametrize(("age_s", "future"), [(-10_800.0, 1), (-3.0, 0), (60.0, 0), (None, 0)])
def test_services_that_were_confirmed_in_the_future_are_counted(
    monkeypatch: pytest.MonkeyPatch, age_s: float | None, future: int
) -> None:
    row = {"name": "orders.nacos.", "namespace": "public", "group": "G", "service": "orders", "protection": "none"}
    page = {"rows": [row | {"spellings": [], "age_s": age_s}], "total": 1, "next": None}
    monkeypatch.setattr(bridge_facts.admin, "pages", lambda *_words: iter([page]))
    found = bridge_facts.services(NOWHERE)

    assert (found.future, found.future_s) == (future, 10_800.0 if future else 0.0)
