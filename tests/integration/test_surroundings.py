"""What is not there, not ours or not meant for us at the wrong moment: DNS goes on, and it is said."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import structlog

import nacosdns as nacosdns_package
from fakes.running import TWO_ORDERS, exchange, free_port, packet, until
from nacosdns.config import Config, Server
from nacosdns.edge import admin, host
from nacosdns.edge.process import last_words
from nacosdns.edge.sockets import Listeners
from nacosdns.edge.standing import strays
from nacosdns.errors import ControlError
from nacosdns.surroundings import Surroundings


def control(running, verb: str, **arguments: object) -> object:
    return admin.call(running.directory / "control.sock", verb, arguments)


def own(running) -> dict[str, object]:
    """The supervisor's part of `status`; nothing while it cannot be asked."""
    try:
        return control(running, "status")["supervisor"]
    except ControlError:
        return {}


def child_of(running, role: str) -> dict[str, object]:
    return next(child for child in own(running)["children"] if child["role"] == role)


def answers(running) -> bool:
    return exchange(packet("who.nacos"), running.port)[3] & 0x0F == 0


def nacosdns(*words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "nacosdns.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30.0)


TRACEBACK = """Traceback (most recent call last):
  File "/a.py", line 3, in <module>
    import b
  File "/b.py", line 7
    def broken(:
               ^
SyntaxError: invalid syntax
"""


# Signals that nobody means for us


@pytest.mark.parametrize("modules", [None, {}])
def test_a_stray_signal_ends_nobody(bridge, modules):
    running = bridge(modules=modules, top=TWO_ORDERS if modules == {} else "").up()
    for pid in (running.process.pid, *running.children()):
        for number in strays():
            os.kill(pid, number)
    control(running, "services")

    assert {signal.SIGUSR1, signal.SIGALRM, signal.SIGPIPE, signal.SIGTTIN, signal.SIGRTMIN} <= set(strays())
    assert exchange(packet("orders.nacos" if modules == {} else "who.nacos"), running.port)[3] & 0x0F == 0
    assert running.process.poll() is None
    assert running.said("child.exited") == []


def test_what_is_meant_for_the_supervisor_ends_no_child_however_young(bridge):
    running = bridge()

    def all_up() -> bool:
        for pid in running.children():
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return len(running.said("child.ready")) == 4

    until(all_up, 30.0, "the start")

    assert running.said("child.exited") == []


def test_a_signal_that_is_ours_waits_for_a_supervisor_that_starts(bridge):
    running = bridge()
    status = Path(f"/proc/{running.process.pid}/status")
    hup = 1 << (signal.SIGHUP - 1)

    def masked() -> bool:
        words = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        return bool((int(words["SigBlk"], 16) | int(words["SigCgt"], 16)) & hup)

    until(masked, what="a mask")
    running.signal(signal.SIGHUP)

    running.wait_for("reloaded")
    running.up()


# A port that another program holds


def test_a_taken_web_port_stops_no_dns_and_is_tried_again(bridge):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        running = bridge(web_port=holder.getsockname()[1]).up(3)
        running.wait_for("web.unusable", f"(pid {os.getpid()})")
        answered = answers(running)
        until(lambda: child_of(running, "web")["failures"] >= 3, what="further attempts")
        fault = own(running)["web"]
        said = nacosdns("status", "-c", str(running.file))
    running.wait_for("child.ready", "child=web", seconds=30.0)

    assert answered
    assert f"127.0.0.1:{running.web_port} (tcp) is taken by" in fault
    assert f"NO WEB: {fault}" in said.stdout
    assert said.returncode == 1
    assert len(running.said("web.unusable")) == 1
    assert not own(running)["web"]


def test_readiness_is_away_while_the_web_port_is_taken_and_comes_at_once_with_a_free_one(bridge):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        running = bridge(top=TWO_ORDERS, modules={}, web_port=holder.getsockname()[1]).up(3)
        running.wait_for("web.unusable")
        holder.settimeout(0.1)
        running.web_port = free_port()
        running.write("")
        running.signal(signal.SIGHUP)

        def ready() -> bool:
            with contextlib.suppress(urllib.error.URLError, OSError):
                return urllib.request.urlopen(f"http://127.0.0.1:{running.web_port}/readyz", timeout=2.0).status == 200
            return False

        until(ready, 20.0, "readiness")

    assert not own(running)["web"]


def test_an_upgrade_does_not_wait_for_a_web_that_has_no_port(bridge):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        running = bridge(web_port=holder.getsockname()[1]).up(3)
        running.wait_for("web.unusable")
        running.signal(signal.SIGUSR2)
        running.wait_for("upgrade.done", seconds=60.0)

    assert answers(running)


# A configuration that is gone


def test_sighup_without_the_file_of_the_start_is_refused_and_the_old_configuration_stays(bridge):
    running = bridge().up()
    before = own(running)["config"]
    away = running.file.rename(running.file.with_suffix(".away"))
    running.signal(signal.SIGHUP)
    running.wait_for("reload.refused", "cannot be read")
    refused = own(running)
    running.signal(signal.SIGUSR2)
    running.wait_for("upgrade.failed", "cannot be read", seconds=60.0)
    away.rename(running.file)
    running.signal(signal.SIGHUP)
    running.wait_for("reloaded")

    assert (refused["config"], own(running)["config"]) == (before, before)
    assert "cannot be read" in refused["reload"]["refused"]
    assert own(running)["reload"] is None
    assert answers(running)


def test_an_upgrade_remembers_that_there_was_a_file(bridge):
    running = bridge().up()
    running.signal(signal.SIGUSR2)
    running.wait_for("upgrade.done", seconds=60.0)
    running.file.unlink()
    running.signal(signal.SIGHUP)

    running.wait_for("reload.refused", "cannot be read")


def test_a_file_that_is_named_and_missing_is_refused_at_the_start(tmp_path):
    done = nacosdns("run", "-c", str(tmp_path / "missing.toml"))

    assert (done.returncode, "cannot be read" in done.stderr) == (2, True)


# A child that makes way


def test_a_keeper_that_makes_way_for_another_nacos_is_no_crash(bridge):
    running = bridge(text='[nacos]\nservers = ["127.0.0.1:1"]', modules={}).up()
    for port in range(2, 6):
        running.write(f'[nacos]\nservers = ["127.0.0.1:{port}"]')
        running.signal(signal.SIGHUP)
        running.wait_for("child.ready", "child=keeper", times=port)
    keeper = child_of(running, "keeper")

    assert keeper["failures"] == 0
    assert len(running.said("child.exited", "child=keeper", "info")) == 4
    assert running.said("child.exited", "warning") == []


# A password that comes late


@pytest.mark.parametrize("before", [None, ""])
def test_a_late_password_stops_no_dns_and_is_taken_when_it_is_there(bridge, tmp_path, before):
    secret = tmp_path / "password"
    if before is not None:
        secret.write_text(before)
    running = bridge(text=f'[nacos]\nusername = "n"\npassword_file = "{secret}"').up()
    running.wait_for("password.unreadable", str(secret))
    answered = answers(running)
    secret.write_text("s3cret\n")

    running.wait_for("fake.configured", "password=s3cret", "role=keeper")
    assert answered
    assert len(running.said("password.unreadable")) == 1


def test_a_password_file_that_goes_while_running_is_told_until_it_is_there_again(bridge, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    running = bridge(text=f'[nacos]\nusername = "n"\npassword_file = "{secret}"').up()

    assert own(running)["password"] == ""

    secret.unlink()
    until(lambda: str(secret) in own(running)["password"])
    secret.write_text("s3cret\n")
    until(lambda: own(running)["password"] == "")


# Descriptors that are not there


@pytest.mark.parametrize("files", [24, 25, 26])
def test_what_could_start_nothing_for_want_of_descriptors_ends_when_it_is_told_to(bridge, files):
    running = bridge(modules={}, before=("sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"))
    running.wait_for("child.not_started", "Too many open files")
    reasons = {child["reason"] for child in own(running)["children"]}
    began = time.monotonic()
    running.signal(signal.SIGTERM)
    code = running.wait()

    assert code == 0
    assert "cannot be started: Too many open files" in reasons
    assert time.monotonic() - began < 3.0


# Commands while the file is bad


@pytest.mark.parametrize("damage", ["[server", "[polcy]\nttl_s = 5"])
def test_commands_find_the_bridge_although_its_file_is_bad(bridge, damage):
    running = bridge(top=TWO_ORDERS, modules={}).up()
    file = ("-c", str(running.file))
    running.write(f"{damage}\n")
    running.signal(signal.SIGHUP)
    running.wait_for("reload.refused")
    until(lambda: nacosdns("ask", "orders.nacos", *file).returncode == 0, what="an answer")
    status, services, doctor = (nacosdns(verb, *file) for verb in ("status", "services", "doctor"))
    resolv = nacosdns("resolvconf", "show", "--json", *file)

    assert status.returncode == services.returncode == 0
    assert "RELOAD REFUSED" in status.stdout
    assert "runs on what was read before" in status.stderr
    assert status.stderr.startswith(f"nacosdns: {running.file}:")
    assert "bridge.canary" in doctor.stdout
    assert "no address on port 53" in json.loads(resolv.stdout)["error"]  # which is so of what the bridge has


def test_a_bad_file_without_a_bridge_is_a_fault_of_the_file(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(f'[cache]\ndir = "{tmp_path}"\n[server')
    done = nacosdns("status", "-c", str(file))

    assert (done.returncode, "not TOML" in done.stderr) == (2, True)


def test_whoever_looks_in_another_directory_is_told_where_a_bridge_runs(bridge, tmp_path):
    running = bridge().up()
    running.file.write_text(running.file.read_text().replace(str(running.directory), str(tmp_path / "other")))
    done = nacosdns("status", "-c", str(running.file))

    assert done.returncode == 1
    assert f"no {tmp_path / 'other' / 'control.sock'}" in done.stderr
    assert str(running.directory) in done.stderr


# Addresses


def test_an_address_that_is_no_longer_wanted_is_not_waited_for(bridge):
    late = f'"127.0.0.1:{{}}", "198.51.100.77:{free_port()}"'
    running = bridge()
    running.up()
    running.write("", listen=late.format(running.port))
    running.signal(signal.SIGHUP)
    running.wait_for("listen.address_missing")
    waiting = own(running)["missing"]
    running.write("")
    running.signal(signal.SIGHUP)
    running.wait_for("reloaded", times=2)

    assert len(waiting) == 1
    assert own(running)["missing"] == []


def test_an_address_that_takes_in_one_of_ours_needs_a_restart_and_blames_nobody(bridge):
    running = bridge().up()
    running.write("", listen=f'"0.0.0.0:{running.port}"')
    running.signal(signal.SIGHUP)
    running.wait_for("reload.refused", "overlaps with", "restart it")

    assert not running.said("is taken by")
    assert answers(running)


class Moving:
    """A host whose interface d1 has other addresses from one look to the next, and who listens there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *listen: str) -> None:
        self.port = free_port()
        self.listeners = Listeners()
        self.surroundings = Surroundings(self.listeners)
        self.config = Config(server=Server(listen=tuple(f"{one}:{self.port}" for one in listen)))
        self.found: tuple[host.HostAddress, ...] = ()
        self.log = structlog.testing.LogCapture()
        self.surroundings._log = structlog.wrap_logger(None, processors=[self.log])
        monkeypatch.setattr(host, "addresses", lambda: self.found)

    def has(self, *addresses: str, interface: str = "d1") -> None:
        pairs = [("lo", "127.0.0.1"), *((interface, address) for address in addresses)]
        self.found = tuple(
            host.HostAddress(name, ipaddress.ip_address(text), ipaddress.ip_network(f"{text}/32"))
            for name, text in pairs
        )

    def look(self) -> None:
        self.surroundings.look(self.config)

    @property
    def wanted(self) -> list[str]:
        return [endpoint.host for endpoint in self.listeners.wanted]

    @property
    def waits_for(self) -> list[str]:
        late = [endpoint.host for endpoint in self.listeners.late]
        return [*(entry.removesuffix(f":{self.port}") for entry in self.listeners.missing), *late]

    @property
    def told(self) -> list[tuple[str, str]]:
        """What was told since this was asked last, each event with its address or entry."""
        kinds = [entry["event"].removeprefix("listen.") for entry in self.log.entries]
        said = [str(entry.get("address") or entry.get("entry")) for entry in self.log.entries]
        self.log.entries.clear()
        return sorted((kind, text.removesuffix(f":{self.port}")) for kind, text in zip(kinds, said, strict=True))


@pytest.fixture
def moving(monkeypatch):
    made = Moving(monkeypatch, "127.0.0.1", "d1")
    made.has("127.79.0.1")
    made.surroundings.want(made.config)
    yield made
    made.listeners.close()


def test_an_interface_wants_the_addresses_that_it_has_now_and_tells_of_each_that_comes_and_goes(moving):
    moving.has("127.80.0.1")
    moving.look()
    told = moving.told
    moving.look()

    assert moving.wanted == ["127.0.0.1", "127.80.0.1"]
    assert moving.waits_for == []
    assert told == [("address_appeared", "127.80.0.1"), ("address_gone", "127.79.0.1")]
    assert moving.told == []


def test_an_interface_that_goes_is_waited_for_itself_and_its_address_is_told_when_it_comes_back(moving):
    moving.has()
    moving.look()
    moving.look()
    waits, gone = moving.waits_for, moving.told
    moving.has("127.79.0.1")
    moving.look()

    assert waits == ["d1"]
    assert gone == [("address_gone", "127.79.0.1"), ("interface_missing", "d1")]
    assert (moving.wanted, moving.waits_for) == (["127.0.0.1", "127.79.0.1"], [])
    assert moving.told == [("address_appeared", "127.79.0.1")]


def test_a_kernel_that_tells_of_no_address_at_all_takes_none_away(moving):
    moving.found = ()
    moving.look()

    assert moving.wanted == ["127.0.0.1", "127.79.0.1"]
    assert moving.told == []
    assert "127.79.0.1" in moving.surroundings.present


def test_a_socket_that_the_service_manager_gave_for_an_address_of_an_interface_is_kept_without_it(monkeypatch):
    moving = Moving(monkeypatch, "d1")
    given = [socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]
    for sock in given:
        sock.bind(("127.79.0.1", moving.port))
    given[1].listen()
    moving.listeners.take_given(given)
    moving.has("127.79.0.1")
    moving.surroundings.want(moving.config)
    moving.has()
    moving.look()

    assert moving.wanted == ["127.79.0.1"]
    assert moving.told == []
    moving.listeners.close()


# What is shown


def test_a_stopped_keeper_is_shown_as_one_that_hangs(bridge):
    running = bridge().up()
    keeper = child_of(running, "keeper")["pid"]
    os.kill(keeper, signal.SIGSTOP)

    until(lambda: any(child["phase"] == "hangs" for child in own(running).get("children", ())), what="the word")
    os.kill(keeper, signal.SIGCONT)
    until(lambda: all(child["phase"] == "ready" for child in own(running).get("children", ())), what="a good end")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", ""),
        ("one\n two \n\n", "two"),
        (TRACEBACK, "SyntaxError: invalid syntax (/b.py, line 7)"),
    ],
)
def test_the_last_words_of_a_traceback_name_its_place(said, words):
    assert last_words(said) == words


@pytest.mark.parametrize("damage", ["def broken(:\n", "import no_such_package\n"])
def test_a_broken_installation_is_one_line_that_names_the_place(tmp_path, damage):
    package = Path(nacosdns_package.__file__).parent
    shutil.copytree(package, tmp_path / "nacosdns", ignore=shutil.ignore_patterns("__pycache__"))
    broken = tmp_path / "nacosdns" / "report.py"
    good = broken.read_text()
    broken.write_text(good + damage)
    command = [sys.executable, "-m", "nacosdns.cli", "status"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )

    assert done.returncode == 1
    assert done.stderr.startswith("nacosdns: the installation is broken: ")
    assert f"({broken}, line {len(good.splitlines()) + 1})" in done.stderr
    assert done.stderr.count("\n") == 1
