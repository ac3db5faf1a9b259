from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
SERVICE = (UNITS / "nacosdns.service").read_text(encoding="utf-8")
SOCKET = (UNITS / "nacosdns.socket").read_text(encoding="utf-8")


def values(unit: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


@pytest.fixture(scope="module")
def analyze():
    found = shutil.which("systemd-analyze")
    if not found:
        assert not os.environ.get("NACOSDNS_REQUIRE_REAL"), "systemd-analyze is missing (package systemd)"
        pytest.skip("systemd-analyze is not installed")
    return found


@pytest.fixture
def installed(tmp_path):
    """The units, with an interpreter that is there."""
    for path in UNITS.glob("nacosdns.*"):
        text = path.read_text(encoding="utf-8").replace("/opt/nacosdns/bin/python", sys.executable)
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["nacosdns.service", "nacosdns.socket"])
def test_systemd_finds_no_fault_in_a_unit(analyze, installed, name):
    done = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", str(installed / name)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{installed}:"},
    )

    assert (done.returncode, [line for line in done.stderr.splitlines() if "nacosdns" in line]) == (0, [])


def test_systemd_calls_the_service_well_shut_in(analyze, installed):
    command = [
        analyze,
        "security",
        "--offline=yes",
        "--threshold=30",
        "--no-pager",
        str(installed / "nacosdns.service"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-2000:]


def test_the_command_of_the_unit_is_one_that_nacosdns_takes(installed):
    (command,) = values((installed / "nacosdns.service").read_text(), "ExecStart")
    words = command.replace(" run ", " check ").replace("/etc/nacosdns/nacosdns.toml", str(ROOT / "config/agent.toml"))
    is_that_user = {"NACOSDNS_SERVER_USER": ""}  # the unit starts it as the user, whom this host need not have
    done = subprocess.run(words.split(), capture_output=True, text=True, check=False, env=os.environ | is_that_user)

    assert (done.returncode, done.stdout[:4]) == (0, "good")


def test_the_socket_unit_and_the_agents_configuration_name_the_same_addresses():
    agent = tomllib.loads((ROOT / "config" / "agent.toml").read_text(encoding="utf-8"))

    assert values(SOCKET, "ListenDatagram") == values(SOCKET, "ListenStream") == agent["server"]["listen"]


def test_the_bridge_is_there_before_those_who_need_names_and_waits_for_no_network():
    assert "nss-lookup.target" in values(SERVICE, "Before")
    assert not [line for line in values(SERVICE, "After") + values(SERVICE, "Wants") if "network" in line]
    assert values(SERVICE, "Restart") == ["always"]
    assert values(SERVICE, "StartLimitIntervalSec") == ["0"]
    assert values(SOCKET, "TriggerLimitIntervalSec") == ["0"]


def test_nothing_runs_as_root():
    assert values(SERVICE, "User") == ["nacosdns"]
    assert values(SERVICE, "NoNewPrivileges") == ["yes"]
    assert values(SERVICE, "CapabilityBoundingSet") == ["CAP_NET_BIND_SERVICE"]
