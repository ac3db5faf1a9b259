"""The image as far as it can be tried without Docker: its Dockerfile read, its wheel built and run shut in as the image runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"
USER = 10053
TOOLS = [tool for tool in ("unshare", "nsenter", "setpriv", "mount", "ip", "setcap") if not shutil.which(tool)]
SHUT_IN = """
set -e
ip link set lo up
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
mount --make-rprivate /
mount -t tmpfs -o uid=10053,gid=10053,mode=0750 state "$1"
cut -d' ' -f2 /proc/self/mounts | sort -r | while read -r place; do
  [ "$place" = "$1" ] || mount -o remount,bind,ro "$place" 2>/dev/null || true
done
if touch /tmp/written /dev/shm/written 2>/dev/null; then exit 1; fi
shift
exec setpriv --reuid=10053 --regid=10053 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
LOW_PORTS = """
import ctypes, os, sys
KEEPCAPS, SET_NO_NEW_PRIVS, NET_BIND_SERVICE = 8, 38, 1 << 10
libc = ctypes.CDLL(None)
class Header(ctypes.Structure): _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
class Data(ctypes.Structure): _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]
for number in range(64):
    if number != 10: libc.prctl(24, number)  # PR_CAPBSET_DROP
libc.prctl(KEEPCAPS, 1)
os.setgroups([]); os.setgid(10053); os.setuid(10053)
data = (Data * 2)(Data(NET_BIND_SERVICE, NET_BIND_SERVICE, 0), Data(0, 0, 0))
assert libc.capset(ctypes.byref(Header(0x20080522, 0)), data) == 0
assert libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""What a container runtime does for a user without rights that was given one capability, before it starts the program."""


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def of(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_the_image_runs_as_nobody_in_particular_and_never_as_root():
    assert of("USER") == [f"{USER}:{USER}"]
    assert instructions().index(("USER", of("USER")[0])) > max(
        at for at, (word, _) in enumerate(instructions()) if word in {"RUN", "FROM"}
    )


def test_every_base_names_its_version():
    for base in of("FROM"):
        assert re.fullmatch(r"\S+:\d[\w.]*-slim-[a-z]+( AS \w+)?", base), base


def test_programs_are_started_as_they_are_and_not_by_a_shell():
    health = of("HEALTHCHECK")[0].partition(" CMD ")[2]
    for command in (*of("ENTRYPOINT"), *of("CMD"), *of("VOLUME"), health):
        assert all(isinstance(word, str) for word in json.loads(command))

    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert "ADD" not in {word for word, _ in instructions()}


def test_the_package_manager_leaves_nothing_in_the_image():
    last = len(instructions()) - 1 - [word for word, _ in reversed(instructions())].index("FROM")

    assert not [rest for word, rest in instructions()[last:] if word == "RUN" and re.search(r"apt-get|pip ", rest)]


def test_what_is_copied_into_the_image_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for rest in of("COPY"):
        if not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert source.split("/")[0] not in ignored


def test_the_compose_file_shuts_our_containers_in():
    services = re.split(r"^  (?=\w)", COMPOSE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ours = [text for text in services if "deploy/docker/Dockerfile" in text]

    assert len(ours) == 2
    for text in ours:
        assert "read_only: true" in text
        assert "cap_drop: [ALL]" in text
    assert not re.search(r"image: \S+:latest|image: [^:\s]+$", COMPOSE.read_text(encoding="utf-8"), re.MULTILINE)


# The wheel


def python_for_all() -> str:
    """An interpreter of this version that every user may run."""
    names = (sys.executable, *(f"{place}/python3.{sys.version_info.minor}" for place in ("/usr/bin", "/usr/local/bin")))
    for python in filter(os.path.exists, names):
        places = {Path(python).resolve(), *Path(python).resolve().parents, *Path(python).parents}
        if all(place.stat().st_mode & 0o001 for place in places):
            return python
    return ""


@pytest.fixture(scope="module")
def open_place() -> Iterator[Path]:
    """A directory that every user may enter; that of pytest is closed again by the next session that starts."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def installed(open_place: Path) -> Path:
    """The wheel of this source in an environment of its own; what it depends on comes from ours."""
    if os.geteuid() != 0 or TOOLS:
        pytest.skip(f"needs root and {TOOLS}")
    if not python_for_all():
        pytest.skip("no Python of this version that every user may run")
    source = open_place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    apart = ("--no-deps", "--no-index")
    run(*pip, "wheel", *apart, "--no-build-isolation", "--wheel-dir", str(open_place), str(source))
    python = open_place / "opt" / "bin" / "python"
    run(python_for_all(), "-m", "venv", "--without-pip", str(open_place / "opt"))
    (wheel,) = open_place.glob("nacosdns-*.whl")
    run(*pip, "--python", str(python), "install", *apart, str(wheel))
    library = next((open_place / "opt" / "lib").glob("python3*")) / "site-packages"
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (library / "dependencies.pth").write_text("\n".join(ours), encoding="utf-8")
    return python.parent


def run(*command: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, env=kept)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def container(installed: Path, open_place: Path) -> Iterator[subprocess.Popen[str]]:
    """The program with a read-only root, as a user without rights, on a network of its own; only its state is writable."""
    state = open_place / "state"
    state.mkdir()
    (open_place / "nacosdns.toml").write_text(
        f'[server]\nlisten = ["0.0.0.0:53"]\n[nacos]\nservers = []\n[cache]\ndir = "{state}"\n'
        '[[static]]\nname = "orders"\ninstances = [{ ip = "10.0.0.1", port = 80 }]\n'
    )
    command = [str(installed / "nacosdns"), "run", "-c", str(open_place / "nacosdns.toml")]
    environment = {"PATH": f"{installed}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    with (open_place / "log").open("w") as log:
        process = subprocess.Popen(
            ["unshare", "-n", "-m", "sh", "-c", SHUT_IN, "sh", str(state), *command],
            stderr=log,
            text=True,
            env=environment,
            cwd="/",
        )
    yield process
    process.kill()
    process.wait()


def test_it_starts_answers_and_stops_with_nothing_writable_but_its_state(container, installed, open_place):
    inside = ("nsenter", "-t", str(container.pid), "-n", "-m", f"--setuid={USER}", f"--setgid={USER}")
    log = open_place / "log"
    until(lambda: "event=front.reads" in log.read_text() or container.poll() is not None, 30, "the first front")
    assert "event=front.reads" in log.read_text(), log.read_text()
    health = json.loads(of("HEALTHCHECK")[0].partition(" CMD ")[2])
    ask = (*inside, str(installed / "nacosdns"), "ask", "orders.nacos", "-c", str(open_place / "nacosdns.toml"))
    until(lambda: subprocess.run([*inside, str(installed / health[0]), *health[1:]], check=False).returncode == 0, 20)
    answer = run(*ask)
    status = json.loads(run(*ask[: len(inside)], *(str(installed / "nacosdns"), "status", "--json"), *ask[-2:]))
    pids = [container.pid, *(child["pid"] for child in status["supervisor"]["children"])]
    rights = [
        re.findall(r"^(?:Uid|CapEff|NoNewPrivs):.*$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        for pid in pids
    ]
    container.send_signal(signal.SIGTERM)

    assert container.wait(10) == 0
    assert "NOERROR" in answer
    assert "10.0.0.1" in answer
    assert len(pids) == 5
    assert all(
        one == [f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}", "CapEff:\t" + "0" * 16, "NoNewPrivs:\t1"] for one in rights
    )
    assert "Traceback" not in log.read_text()


def test_a_container_that_was_given_the_right_to_low_ports_hands_it_to_its_program_only(installed, open_place):
    """Kubernetes knows no ambient capabilities: what the container has is lost to a user at exec, but for a file with it."""
    low_ports = open_place / "low-ports"
    shutil.copy(shutil.which("setpriv") or "", low_ports)
    run("setcap", "cap_net_bind_service=p", str(low_ports))
    program = "import socket; socket.socket(type=socket.SOCK_DGRAM).bind(('127.0.0.1', 53)); print(open('/proc/self/status').read())"
    words = (str(low_ports), "--inh-caps=+net_bind_service", "--ambient-caps=+net_bind_service", python_for_all())
    enter = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c", LOW_PORTS)
    status = run(*enter, *words, "-c", program)
    plain = subprocess.run([*enter, *words[3:], "-c", program], capture_output=True, text=True, check=False)

    assert re.search(r"^CapEff:\t0{13}400$", status, re.MULTILINE)
    assert re.search(r"^Uid:\t10053\t", status, re.MULTILINE)
    assert "PermissionError" in plain.stderr
