"""Upgrades between releases that differ, each installed beside the other with a link that is turned (deploy/systemd).

The releases are built from the working tree and then edited. Release 0.2.0 marks the name of each of its processes, so that
the kernel says who runs which code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.drills.renewal import Manager, children_of
from chaos.ground import Ground
from fakes.nacos_server import FakeNacos
from fakes.running import TWO_ORDERS, exchange, free_port, packet, until
from fakes.seen import lives, total
from fakes.upstream import StubUpstream
from nacosdns.core import frames, handover
from nacosdns.edge import admin, store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fakes.running import Bridge

ROOT = Path(__file__).parents[2]
LIBRARY = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
RATE = 200
MARK = "2."
"""Before the name of each process of release 0.2.0."""
CALL_ME = "create_string_buffer(name.encode()", f'create_string_buffer(("{MARK}" + name).encode()'
LINK = """[nacos]
servers = ["{nacos}"]
[forward]
upstreams = ["{upstream}"]
[[static]]
name = "orders"
instances = [{{ ip = "10.0.0.1", port = 80 }}, {{ ip = "10.0.0.2", port = 81 }}]
"""


class House:
    """A directory of releases and the link to the present one."""

    def __init__(self, place: Path, bases: dict[str, Path]) -> None:
        self.link = place / "nacosdns"
        self._place = place
        self._bases = bases
        self._count = 0

    def release(self, version: str, *edits: tuple[str, str, str], without: str = "") -> Path:
        """A release of this version; an edit is a file, what stands there once, and what stands there then."""
        self._count += 1
        made = self._place / f"nacosdns-{version}-{self._count}"
        base = self._bases[version]
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
        for found in (base / LIBRARY).glob("nacosdns*"):
            shutil.copytree(found, made / LIBRARY / found.name)
        script = (base / "bin" / "nacosdns").read_text(encoding="utf-8").replace(str(base), str(made))
        (made / "bin" / "nacosdns").write_text(script, encoding="utf-8")
        (made / "bin" / "nacosdns").chmod(0o755)
        _share_dependencies(made, without)
        marks = [("edge/standing.py", *CALL_ME)] if version == "0.2.0" else []
        for file, before, after in (*marks, *edits):
            path = made / LIBRARY / "nacosdns" / file
            text = path.read_text(encoding="utf-8")
            assert text.count(before) == 1, (file, before)
            path.write_text(text.replace(before, after), encoding="utf-8")
        return made

    def turn(self, release: Path) -> None:
        """Turns the link, in one step."""
        fresh = self.link.with_suffix(".new")
        fresh.symlink_to(release)
        fresh.replace(self.link)

    def say(self, running: Bridge, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the release that the link leads to."""
        command = [str(self.link / "bin" / "python"), "-P", "-m", "nacosdns.cli", *words, "-c", str(running.file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=_plain())

    def upgrade(self, running: Bridge, release: Path) -> tuple[int, str]:
        """Turns the link and has the bridge follow it: the exit code, and what was said."""
        self.turn(release)
        done = self.say(running, "upgrade")
        return done.returncode, done.stdout + done.stderr


def _share_dependencies(release: Path, without: str) -> None:
    """What others wrote comes from where we run, but for a package of this name."""
    found = [Path(path) for path in sys.path if path.endswith("site-packages")]
    if without:
        own = release / "others"
        own.mkdir()
        for place in found:
            for entry in place.iterdir():
                if not entry.name.startswith(without) and not (own / entry.name).exists():
                    (own / entry.name).symlink_to(entry)
        found = [own]
    (release / LIBRARY / "others.pth").write_text("".join(f"{place}\n" for place in found), encoding="utf-8")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two releases of the working tree, installed by pip."""
    place = tmp_path_factory.mktemp("bases")
    building = {version: _build(place, version) for version in ("0.1.0", "0.2.0")}
    for version, process in building.items():
        said, _ = process.communicate(timeout=100)
        assert process.returncode == 0, said
        release = place / f"nacosdns-{version}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", release], check=True)
        wheel = next(place.glob(f"nacosdns-{version}-*.whl"))
        pip = [sys.executable, "-m", "pip", "--python", release / "bin" / "python"]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", wheel], check=True, env=_plain())
    return {version: place / f"nacosdns-{version}" for version in building}


def _build(place: Path, version: str) -> subprocess.Popen[str]:
    tree = place / f"tree-{version}"
    hidden = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=hidden)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tree / "pyproject.toml").write_text(
        "\n".join(f'version = "{version}"' if line.startswith("version =") else line for line in text.splitlines())
    )
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, "-w", place, tree], stdout=pipe, stderr=subprocess.STDOUT, text=True, env=_plain()
    )


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture
def house(tmp_path: Path, bases: dict[str, Path]) -> House:
    (tmp_path / "opt").mkdir()
    return House(tmp_path / "opt", bases)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Ground("releases", tmp_path / "ground", short=True) as made:
        yield made


@pytest.fixture
def start(bridge: Callable[..., Bridge], house: House) -> Callable[..., Bridge]:
    """Starts a bridge from the link, as the unit does."""

    def make(release: Path, top: str = TWO_ORDERS) -> Bridge:
        house.turn(release)
        python = str(house.link / "bin" / "python")
        return bridge(modules={}, top=top, python=python, before=("env", "-u", "PYTHONPATH")).up()

    return make


def overview(running: Bridge) -> dict:
    return admin.call(running.directory / "control.sock", "status", {})["supervisor"]


def codes(running: Bridge) -> dict[str, str]:
    """The release of each process, as its name has it."""
    seen = overview(running)
    pids = {"supervisor": seen["pid"]} | {f"{one['role']}{one['slot']}": one["pid"] for one in seen["children"]}
    return {word: "0.2.0" if name(pid).startswith(MARK) else "0.1.0" for word, pid in pids.items()}


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")


def releases(running: Bridge) -> set[str]:
    """The releases of all processes, which are five."""
    found = codes(running)
    assert len(found) == 5, found
    return set(found.values())


def shown(house: House, running: Bridge) -> set[str]:
    """The release as the command, `status` and the metrics have it."""
    upgraded = json.loads(house.say(running, "status", "--json").stdout)["supervisor"]["upgrade"]["after"]
    command = [house.link / "bin" / "nacosdns", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=_plain())
    (metric,) = [version for version in ("0.1.0", "0.2.0") if total(running, "build_info", f'version="{version}"')]
    return {upgraded, told.stdout.split()[1], metric}


@contextlib.contextmanager
def nacos(**services: str) -> Iterator[str]:
    """A server with these services, of one instance each, and its address."""
    fake = FakeNacos()
    for service, ip in services.items():
        host = {"ip": ip, "port": 80, "weight": 1.0, "healthy": True, "enabled": True, "clusterName": "DEFAULT"}
        fake.services["public", "DEFAULT_GROUP", service] = [host]
    loop = asyncio.new_event_loop()
    up, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with fake.running():
            up.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert up.wait(10)
    try:
        yield fake.address
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def answered(port: int, question: str) -> bool:
    reply = exchange(packet(question), port)
    return reply[3] & 0x0F == 0 and reply[7] > 0


# Two releases of which one adds to the handover, and the other lacks something of it

NEW_FIELDS = (
    ("core/handover.py", "    announced: bool = False\n", "    announced: bool = False\n    weather: str = 'fine'\n"),
    ("core/handover.py", "    fresh: bool = False\n", "    fresh: bool = False\n    mood: str = 'good'\n"),
)
LACKING_FIELDS = (
    ("core/handover.py", "    announced: bool = False\n", ""),
    ("supervisor.py", "            announced=self._manager.announced,\n", ""),
    ("supervisor.py", "announced=bool(left and left.announced)", "announced=False"),
)


def test_all_goes_on_in_the_new_release_and_again_in_the_old_one(house, start, ground):
    old, new = house.release("0.1.0", *LACKING_FIELDS), house.release("0.2.0", *NEW_FIELDS)
    with nacos(payments="10.0.0.9") as server, StubUpstream() as upstream:
        upstream.answer("ext.test", "A", "192.0.2.1", ttl_s=3600)
        running = start(old, LINK.format(nacos=server, upstream=upstream.address))
        for question in ("orders.nacos", "payments.nacos", "ext.test"):
            until(lambda: answered(running.port, question), what=question)  # noqa: B023  # called in this turn
    pid, before = running.process.pid, total(running, "queries_total")
    load = ground.load(running.port, RATE).expect_orders()
    load.expect("payments.nacos", "10.0.0.9").expect("ext.test", "192.0.2.1")  # nobody could be asked for them now
    with ground.under_load(load):
        there = house.upgrade(running, new)
        all_new, new_shown = releases(running), shown(house, running)
        back = house.upgrade(running, old)
        all_old, old_shown = releases(running), shown(house, running)
    status = house.say(running, "status")

    assert [said[0] for said in (there, back)] == [0, 0], (there, back)
    assert (all_new, new_shown) == ({"0.2.0"}, {"0.2.0"})
    assert (all_old, old_shown) == ({"0.1.0"}, {"0.1.0"})
    assert overview(running)["pid"] == pid == running.process.pid
    assert total(running, "queries_total") >= before + load.end().right
    assert "last upgrade done: release 0.1.0" in status.stdout
    assert set(running.children()) == {child["pid"] for child in overview(running)["children"]}


def test_who_dies_after_the_link_was_turned_and_before_the_upgrade_comes_back_in_the_new_release(house, start, ground):
    old, new = house.release("0.1.0"), house.release("0.2.0")
    running = start(old)
    house.turn(new)
    load = ground.load(running.port, RATE).expect_orders()
    with ground.under_load(load):
        for role in ("front", "keeper", "web"):
            one = next(
                child for child in overview(running)["children"] if child["role"] == role and not child["sockets"]
            )
            os.kill(one["pid"], signal.SIGKILL)
        until(lambda: codes_or_none(running).count("0.2.0") == 3, what="a mixed bridge")
        until(lambda: all(child["phase"] == "ready" for child in overview(running)["children"]), what="all of it")
        mixed = codes_or_none(running)
        done = house.say(running, "upgrade")

    assert sorted(mixed) == ["0.1.0"] * 2 + ["0.2.0"] * 3
    assert done.returncode == 0, done
    assert releases(running) == {"0.2.0"}


def codes_or_none(running: Bridge) -> list[str]:
    with contextlib.suppress(OSError):  # who is just dying has no name any more
        return list(codes(running).values())
    return []


# What one leaves to the other


def test_a_handover_of_the_next_version_is_refused_by_the_older_release_and_the_newer_goes_on(house, start, ground):
    version = handover.VERSION
    raised = "core/handover.py", f"\nVERSION = {version}\n", f"\nVERSION = {version + 1}\n"
    old, new = house.release("0.1.0"), house.release("0.2.0", raised)
    running = start(old)
    with ground.under_load(ground.load(running.port, RATE).expect_orders()):
        there = house.upgrade(running, new)
        back = house.upgrade(running, old)

    assert there == (0, "upgrade done: release 0.2.0\n")
    assert back[0] == 1
    assert f"the running nacosdns hands over in version {version + 1}, this one knows {version}" in back[1]
    assert releases(running) == {"0.2.0"}


def test_releases_of_two_versions_of_the_link_understand_each_other(house, start, ground):
    version = frames.VERSION
    raised = "core/frames.py", f"\nVERSION = {version}\n", f"\nVERSION = {version + 1}\n"
    old, new = house.release("0.1.0"), house.release("0.2.0", raised)
    running = start(old)
    with ground.under_load(ground.load(running.port, RATE).expect_orders()):
        there = house.upgrade(running, new), releases(running)
        back = house.upgrade(running, old), releases(running)

    assert there == ((0, "upgrade done: release 0.2.0\n"), {"0.2.0"})
    assert back == ((0, "upgrade done: release 0.1.0\n"), {"0.1.0"})
    assert running.said("link.dropped") == []


def test_a_release_that_does_not_take_the_socket_of_web_opens_its_own(house, start):
    old, new = house.release("0.1.0", ("self_check.py", "        takes_web=True,\n", "")), house.release("0.2.0")
    running = start(old)
    went = house.upgrade(running, new), total(running, "build_info", '"0.2.0"')
    back = house.upgrade(running, old), total(running, "build_info", '"0.1.0"')
    again = house.upgrade(running, new), total(running, "build_info", '"0.2.0"')

    assert [went, back, again] == [
        ((0, f"upgrade done: release {version}\n"), 1.0) for version in ("0.2.0", "0.1.0", "0.2.0")
    ]
    assert running.said("web.unusable") == []


def test_the_command_of_the_new_release_upgrades_a_bridge_that_speaks_another_control_protocol(house, start):
    version = frames.CONTROL_VERSION
    raised = "core/frames.py", f"\nCONTROL_VERSION = {version}\n", f"\nCONTROL_VERSION = {version + 1}\n"
    old, new = house.release("0.1.0"), house.release("0.2.0", raised)
    running = start(old)
    house.turn(new)
    refused = house.say(running, "status")
    there = house.upgrade(running, new)
    back = house.upgrade(running, old)

    assert refused.returncode == 1
    assert f"understands version {version} of the control protocol" in refused.stderr
    assert there == (0, "upgrade done: release 0.2.0\n")
    assert back == (0, "upgrade done: release 0.1.0\n")


def test_counters_of_another_layout_begin_anew_and_nothing_else_is_lost(house, start, ground):
    """A family in the middle moves all behind it: pages of the two releases do not mean the same."""
    moved = "core/metrics.py", '"queries_total"', '"questions_total"'
    old, new = house.release("0.1.0"), house.release("0.2.0", moved)
    running = start(old)
    with ground.under_load(ground.load(running.port, RATE).expect_orders()):
        there = house.upgrade(running, new), releases(running)
        until(lambda: total(running, "questions_total"), what="a counter of the new layout")
        old_name = total(running, "queries_total")

    assert there == ((0, "upgrade done: release 0.2.0\n"), {"0.2.0"})
    assert old_name == 0
    assert 0 < total(running, "questions_total") < 100 * RATE


def test_a_database_of_a_newer_schema_keeps_the_newer_release(house, start, ground):
    schema = store.SCHEMA
    raised = "edge/store.py", f"\nSCHEMA = {schema}\n", f"\nSCHEMA = {schema + 1}\n"
    old, new = house.release("0.1.0"), house.release("0.2.0", raised)
    with StubUpstream() as upstream:
        upstream.answer("ext.test", "A", "192.0.2.1", ttl_s=3600)
        running = start(old, TWO_ORDERS.replace("upstreams = []", f'upstreams = ["{upstream.address}"]'))
        with ground.under_load(ground.load(running.port, RATE).expect_orders()):
            there = house.upgrade(running, new)
            assert answered(running.port, "ext.test")  # the first thing that it writes down
            until(lambda: written(running.directory) == schema + 1, what="the newer schema")
            back = house.upgrade(running, old)

    assert there == (0, "upgrade done: release 0.2.0\n")
    assert back[0] == 1
    assert f"has schema {schema + 1}, newer than ours ({schema})" in back[1]
    assert releases(running) == {"0.2.0"}


def written(directory: Path) -> int:
    """The schema of the database."""
    with contextlib.closing(sqlite3.connect(directory / "cache.db")) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


# A release that does not work


def test_a_broken_release_is_refused_with_file_and_line_and_the_old_one_goes_on(house, start, ground):
    old = house.release("0.1.0")
    first = "from __future__ import annotations\n"
    broken = {
        "edge/http.py": house.release("0.2.0", ("edge/http.py", first, f"{first}def broken(:\n")),
        "saving.py": house.release("0.2.0", ("saving.py", first, f"{first}def broken(:\n")),
    }
    lacking = house.release("0.2.0", without="granian")
    running = start(old)
    before = running.children()
    with ground.under_load(ground.load(running.port, RATE).expect_orders()):
        said = {file: house.upgrade(running, release) for file, release in broken.items()}
        lacks = house.upgrade(running, lacking)
        house.turn(old)

    for file, (code, words) in said.items():
        line = (house.link / LIBRARY / "nacosdns" / file).read_text(encoding="utf-8").partition(first)[0].count(
            "\n"
        ) + 2
        assert code == 1
        assert "SyntaxError: invalid syntax" in words
        assert f"nacosdns/{file}, line {line})" in words
    assert lacks[0] == 1
    assert "No module named 'granian'" in lacks[1]
    assert "nacosdns/edge/http.py, line " in lacks[1]
    assert running.children() == before
    assert house.upgrade(running, old)[0] == 0


# Killed just when it has become the new code


def pausing(house: House, mark: Path) -> Path:
    """A release whose supervisor stands still before it goes on with anything that it was left."""
    taken = "    left = upgrading.take(state_fd) if state_fd >= 0 else None\n"
    stands = f"    if left:\n        open({str(mark)!r}, 'w').close()\n        signal.pause()\n"
    return house.release("0.2.0", ("supervisor.py", taken, taken + stands))


def begin(house: House, running_dir: Path, release: Path, mark: Path) -> None:
    """Upgrades up to the moment where the new code holds everything and has done nothing."""
    house.turn(release)
    admin.call(running_dir / "control.sock", "upgrade", {})
    until(mark.exists, 60, "the new code")


def is_free(port: int, *kinds: socket.SocketKind) -> bool:
    for kind in kinds:
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind is socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def test_killed_between_execv_and_the_adoption_nothing_stays(house, start, bridge, tmp_path):
    mark = tmp_path / "taken"
    old, new = house.release("0.1.0"), pausing(house, mark)
    running = start(old)
    begin(house, running.directory, new, mark)
    group = running.children()
    answers_meanwhile = answered(running.port, "orders.nacos")
    running.process.kill()
    running.process.wait()
    until(lambda: not any(map(lives, group)), 3.0, "the end of every child")

    assert len(group) >= 5  # the front that was tried is among them
    assert answers_meanwhile
    # a process of many threads holds its sockets a moment longer than it seems to live
    until(lambda: is_free(running.port, socket.SOCK_DGRAM, socket.SOCK_STREAM), 3.0, "the end of all sockets")
    until(lambda: is_free(running.web_port, socket.SOCK_STREAM), 3.0, "the end of the socket of web")
    house.turn(old)
    again = bridge(
        modules={}, top=TWO_ORDERS, port=running.port, directory=running.directory, web_port=running.web_port
    ).up()
    assert answered(again.port, "orders.nacos")


def test_killed_there_with_sockets_of_systemd_what_is_queued_is_answered_by_the_next_start(house, ground, tmp_path):
    mark, port, state = tmp_path / "taken", free_port(), tmp_path / "state"
    file = tmp_path / "bridge.toml"
    file.write_text(
        f'[server]\nlisten = ["127.0.0.1:{port}"]\nuser = ""\n[web]\nlisten = ""\n[cache]\ndir = "{state}"\n{TWO_ORDERS}'
    )
    old, new = house.release("0.1.0"), pausing(house, mark)
    house.turn(old)
    python = str(house.link / "bin" / "python")
    manager = Manager(ground, port)
    pid = manager.start(file, python)
    until(lambda: answered_or_not(port), 30, "an answer")
    begin(house, state, new, mark)
    group = children_of(pid)
    os.kill(pid, signal.SIGKILL)
    manager.stop()
    until(lambda: not any(map(lives, group)), 3.0, "the end of every child")
    house.turn(old)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("127.0.0.1", port))
        asking.settimeout(30)
        for number in range(50):
            asking.send(packet("orders.nacos", number))
        manager.start(file, python)
        found = {asking.recv(512)[:4] for _ in range(50)}

    assert {reply[:2] for reply in found} == {number.to_bytes(2, "big") for number in range(50)}
    assert {reply[3] & 0x0F for reply in found} == {0}


def answered_or_not(port: int) -> bool:
    with contextlib.suppress(OSError):
        return answered(port, "orders.nacos")
    return False
