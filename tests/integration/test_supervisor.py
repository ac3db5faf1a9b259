from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chaos.stored import NO_NACOS, fill
from fakes.loop import on_a_loop
from fakes.running import FAKES, exchange, free_port, packet, until
from fakes.upstream import StubUpstream
from nacosdns.core import frames
from nacosdns.edge import admin
from nacosdns.edge.cover import servfail
from nacosdns.edge.process import Process, outcome
from nacosdns.edge.rights import refuges
from nacosdns.errors import ControlError, ControlSilent
from nacosdns.problems import found

SERVFAIL = 2
SLOW_S = 2.0
"""What the end of Python may take on a slow machine; how long ours takes is measured in virtual time."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="changes users or network namespaces, which only root may")


def rcode(reply: bytes) -> int:
    return reply[3] & 0x0F


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def control(running, verb: str, **arguments: object) -> object:
    return admin.call(running.directory / "control.sock", verb, arguments)


# Answering


def test_one_front_answers_and_one_stands_by(bridge):
    running = bridge().up()

    assert {running.pid_of_reader() for _ in range(5)} == {running.pid_of_reader()}
    assert len(running.said("child.ready", "child=front")) == 2


def test_two_active_fronts_share_the_clients(bridge):
    running = bridge(text="fronts = 2").up(5)
    until(lambda: len(running.said("front.reads")) >= 2)

    assert len({running.pid_of_reader() for _ in range(60)}) == 2


def test_a_front_killed_under_load_loses_nothing_that_was_queued(bridge):
    running = bridge().up()
    victim = running.pid_of_reader()
    covered = len(running.said("front.covered"))
    lost, sent = [], 0
    killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
    killer.start()
    end = time.monotonic() + 1.0
    while time.monotonic() < end or sent <= 100:
        try:
            reply = exchange(packet("who.nacos", sent % 60000), running.port, seconds=2.0)
            assert rcode(reply) == 0
        except TimeoutError:
            lost.append(sent)
        sent += 1
    killer.join()

    assert len(lost) <= 1
    assert running.pid_of_reader() != victim
    assert len(running.said("front.covered")) == covered


def test_the_dead_fronts_place_is_taken_by_a_new_standby(bridge):
    running = bridge().up()
    with pytest.raises(TimeoutError):
        exchange(packet("crash.nacos"), running.port, seconds=0.3)
    running.wait_for("child.exited", "status=3")
    running.wait_for("child.ready", "child=front", times=3)

    assert rcode(exchange(packet("who.nacos"), running.port)) == 0
    assert len(running.children()) == 4


def test_the_log_and_the_status_say_why_a_child_ended(bridge):
    running = bridge().up()
    front, keeper = running.pid_of_reader(), control(running, "services")["pid"]
    os.kill(keeper, signal.SIGKILL)
    running.wait_for("child.exited", f"pid={keeper}", 'reason="ended by SIGKILL"')
    os.kill(front, signal.SIGSTOP)
    running.wait_for("child.exited", f"pid={front}", 'reason="killed: hangs"')
    children = control(running, "status")["supervisor"]["children"]

    assert {child["reason"] for child in children} >= {"ended by SIGKILL", "killed: hangs"}


def test_a_child_whose_module_cannot_be_imported_says_so_in_its_last_word(bridge):
    running = bridge(modules=FAKES | {"keeper": "fakes.child_unimported"})
    reason = "ModuleNotFoundError: No module named 'no_such_library'"
    running.wait_for("child.exited", "child=keeper", f'reason="{reason}"', times=2)
    problems = found(control(running, "status"))

    assert any(line.startswith("keeper ") and line.endswith(reason) for line in problems)
    assert not running.said("Traceback")


def test_a_packet_that_kills_every_front_does_not_take_the_service_down(bridge):
    """A resolver asks it again and again: fronts come back ever later, and meanwhile clients are told SERVFAIL at once."""
    running = bridge().up()
    slowest, unanswered, codes = 0.0, 0, set()
    ends = time.monotonic() + 6.0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as poison:
        poison.connect(("127.0.0.1", running.port))
        while time.monotonic() < ends:
            with contextlib.suppress(ConnectionError):
                poison.send(packet("crash.nacos"))
            began = time.monotonic()
            for _ in range(5):
                try:
                    codes.add(rcode(exchange(packet("who.nacos"), running.port, seconds=2.0)))
                except TimeoutError:
                    unanswered += 1
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.2)
    crashes = len(running.said("child.exited", "status=3"))
    until(lambda: rcode(exchange(packet("who.nacos"), running.port)) == 0, 15.0, "a front")

    assert unanswered == 0
    assert slowest < 1.5
    assert codes <= {0, SERVFAIL}
    assert 3 <= crashes <= 20  # without the back-off it would be twice as many


def test_a_hanging_front_is_killed_and_its_queue_is_answered_by_the_standby(bridge):
    running = bridge().up()
    with pytest.raises(TimeoutError):
        exchange(packet("hang.nacos"), running.port, seconds=0.1)
    reply = exchange(packet("who.nacos"), running.port)

    assert rcode(reply) == 0
    assert running.said("child.killed", "reason=hangs")


def test_without_any_front_the_supervisor_answers_servfail_at_once(bridge):
    running = bridge(modules=FAKES | {"front": "fakes.front_crashing"})
    running.wait_for("front.covered", "sockets=[0]")
    query = packet("OrDers.nacos", 0xBEEF)
    reply = exchange(query, running.port, seconds=2.0)

    assert reply == query[:2] + b"\x81\x82" + query[4:]
    with socket.create_connection(("127.0.0.1", running.port), 2.0) as connection:
        assert connection.recv(10) == b""


def test_a_front_that_cannot_start_is_tried_again_ever_more_seldom(bridge):
    running = bridge(modules=FAKES | {"front": "fakes.front_crashing"})
    running.wait_for("child.exited", "slot=3", times=4)
    began = time.monotonic()
    running.wait_for("child.exited", "slot=3", times=5)

    assert time.monotonic() - began > 0.3
    assert running.process.poll() is None


def test_a_covered_wildcard_answers_from_the_address_that_was_asked(bridge):
    port = free_port()
    listen = f'"0.0.0.0:{port}", "[::]:{port}"'
    running = bridge(modules=FAKES | {"front": "fakes.front_crashing"}, port=port, listen=listen)
    running.wait_for("front.covered")

    for host in ("127.0.0.1", "127.0.0.2", "127.9.9.9", "::1"):
        assert rcode(exchange(packet("a.nacos"), port, host, seconds=2.0)) == SERVFAIL


@pytest.mark.parametrize(
    ("query", "answered"),
    [
        (packet("a.nacos"), True),
        (packet("a.nacos")[:11], False),
        (b"", False),
        (packet("a.nacos")[:2] + b"\x81" + packet("a.nacos")[3:], False),
    ],
)
def test_the_covering_reply_is_never_given_to_replies_or_fragments(query, answered):
    assert (servfail(query) is not None) == answered


# Life and death


def test_sigterm_drains_and_exits_0_and_gives_the_port_back(bridge):
    """S79."""
    running = bridge().up()
    children = running.children()
    began = time.monotonic()
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert time.monotonic() - began < 3.0 + SLOW_S
    assert running.said("fake.drained", "role=keeper")
    assert not any(map(alive, children))
    again = bridge(port=running.port)
    again.wait_for("started")


def test_sigterm_ends_within_3_s_when_children_hang(bridge):
    """S79."""
    running = bridge(modules=FAKES | {"keeper": "fakes.child_deaf", "web": "fakes.child_deaf"}).up()
    children = running.children()
    began = time.monotonic()
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert time.monotonic() - began < 3.0 + SLOW_S
    until(lambda: not any(map(alive, children)), 1.0, "the end of every child")


def test_a_second_sigterm_ends_at_once(bridge):
    """S79."""
    running = bridge(modules=FAKES | {"keeper": "fakes.child_deaf", "web": "fakes.child_deaf"}).up()
    running.signal(signal.SIGTERM)
    running.wait_for("stopping")
    began = time.monotonic()
    running.signal(signal.SIGTERM)

    assert running.wait() == 1
    assert time.monotonic() - began < 2.0  # in order it takes 2.5 s


def test_children_die_with_a_killed_supervisor(bridge):
    running = bridge().up()
    children = running.children()
    running.process.kill()

    until(lambda: not any(map(alive, children)), 2.0, "the end of every child")
    bridge(port=running.port).wait_for("started")


def test_a_stopped_and_continued_supervisor_kills_nobody(bridge):
    running = bridge().up()
    group = [running.process.pid, *running.children()]
    for pid in group:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    for pid in group:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)

    assert running.said("child.killed") == []
    assert rcode(exchange(packet("who.nacos"), running.port)) == 0


def test_a_dead_keeper_is_started_again_and_dns_goes_on(bridge):
    running = bridge().up()
    pid = control(running, "services")["pid"]
    os.kill(pid, signal.SIGKILL)

    assert rcode(exchange(packet("who.nacos"), running.port)) == 0
    running.wait_for("child.ready", "child=keeper", times=2)
    assert control(running, "services")["pid"] != pid


@on_a_loop
async def test_a_frame_for_a_child_that_hung_up_leaves_no_error_behind():
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    ours, theirs = socket.socketpair()
    ended = asyncio.Event()
    popen = subprocess.Popen([sys.executable, "-c", ""])
    process = Process(popen, ours, lambda _: None, lambda _: ended.set())
    theirs.close()

    assert not (process.tell(frames.Drain(1.0)) and process.tell(frames.Drain(1.0)))
    await asyncio.wait_for(ended.wait(), 5.0)
    del process
    gc.collect()
    assert errors == []
    assert ours.fileno() == -1


@on_a_loop
async def test_where_the_kernel_gives_no_pidfd_the_end_of_a_child_is_noticed_all_the_same(monkeypatch):
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    ours, theirs = socket.socketpair()
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    popen = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    Process(popen, ours, lambda _: None, ended.set_result)
    theirs.close()

    assert await asyncio.wait_for(ended, 10.0) == 3


class Undying:
    """A command that no signal ends, for the disk does not answer it."""

    returncode = None

    def __init__(self) -> None:
        self.killed = False

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "this waits for ever"
        raise subprocess.TimeoutExpired("it", timeout)


@on_a_loop
async def test_nobody_waits_for_a_command_that_cannot_be_killed(tmp_path):
    undying = Undying()
    with (tmp_path / "words").open("w+b") as words, pytest.raises(TimeoutError):
        await outcome(undying, words.fileno(), 0.01)

    assert undying.killed


@on_a_loop
async def test_what_was_half_read_and_half_sent_is_gone_on_with():
    ours, theirs = socket.socketpair()
    theirs.settimeout(5.0)
    got: list[object] = []
    ended = asyncio.Event()
    popen = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    whole = frames.framed(frames.Ready(7))
    process = Process(popen, ours, got.append, lambda _: ended.set())
    process.resume(whole[:3], frames.framed(frames.Drain(1.0))[2:])
    theirs.sendall(whole[3:] + whole[:5])
    for _ in range(100):
        await asyncio.sleep(0)
    process.kill()
    await asyncio.wait_for(ended.wait(), 5.0)

    sent = theirs.recv(100)
    theirs.close()

    assert got == [frames.Ready(7)]
    assert bytes(process.unread) == whole[:5]
    assert sent == frames.framed(frames.Drain(1.0))[2:]


# Its directory


STATIC = """
[nacos]
servers = []
[[static]]
name = "orders"
instances = [{ ip = "10.0.0.1", port = 80 }]
"""


@contextlib.contextmanager
def asked_all_the_time(port: int):
    """Asks for orders.nacos without a pause; gives the list of what went wrong, and of what was answered."""
    wrong: list[object] = []
    good: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.01):
            try:
                reply = exchange(packet("orders.nacos"), port, seconds=2.0)
            except OSError as error:
                wrong.append(error)
            else:
                (good if reply[-4:] == bytes([10, 0, 0, 1]) else wrong).append(rcode(reply))

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield wrong, good
    finally:
        stop.set()
        client.join()


def status(running) -> dict[str, object]:
    """What `nacosdns status` is told; nothing while the bridge cannot be reached."""
    try:
        return control(running, "status")
    except ControlError:
        return {}


def pid_of_keeper(running) -> int:
    children = status(running).get("supervisor", {"children": []})["children"]
    return next((child["pid"] for child in children if child["role"] == "keeper" and child["phase"] == "ready"), 0)


def all_linked(running) -> bool:
    fronts = status(running).get("fronts", {})
    return len(fronts) == 2 and all(front.get("linked") for front in fronts.values())


@pytest.mark.parametrize("gone", [".", "control.sock", "link.sock"])
def test_what_is_removed_of_the_directory_comes_back_and_fronts_link_again(bridge, gone):
    running = bridge(text=STATIC, modules={}).up()
    until(lambda: all_linked(running), what="the first links")
    modes = {name: (running.directory / name).stat().st_mode for name in (".", "control.sock", "link.sock")}
    with asked_all_the_time(running.port) as (wrong, good):
        victim = running.directory / gone
        shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
        running.wait_for("sockets.remade", seconds=10.0)
        until(lambda: pid_of_keeper(running) and all_linked(running), 10.0, "a whole bridge")
        first = pid_of_keeper(running)
        os.kill(first, signal.SIGKILL)
        until(lambda: pid_of_keeper(running) not in {0, first}, what="the next keeper")
        until(lambda: all_linked(running), 10.0, "links to the next keeper")
        until(lambda: len(good) > 50, what="answers to judge by")  # a fast machine is done before

    assert wrong == []
    assert len(good) > 50
    assert len(running.said("sockets.remade")) == 1
    assert {name: (running.directory / name).stat().st_mode for name in modes} == modes


def test_a_directory_that_cannot_be_made_again_is_said_once_and_made_when_it_can_be(bridge):
    running = bridge().up()
    shutil.rmtree(running.directory)
    running.directory.write_text("in the way")
    running.wait_for("sockets.not_remade", "cannot be made", seconds=10.0)
    time.sleep(2.5)
    said = len(running.said("sockets.not_remade"))
    answered = rcode(exchange(packet("who.nacos"), running.port))
    running.directory.unlink()
    running.wait_for("sockets.remade", seconds=10.0)

    assert (said, answered) == (1, 0)
    assert control(running, "status")["supervisor"]["pid"] == running.process.pid


def test_a_directory_that_another_bridge_took_is_left_to_it(bridge):
    first = bridge().up()
    first.signal(signal.SIGSTOP)
    shutil.rmtree(first.directory)
    second = bridge(directory=first.directory)
    second.wait_for("started")
    first.signal(signal.SIGCONT)
    first.wait_for("sockets.not_remade", "another nacosdns is running", seconds=10.0)

    assert control(second, "status")["supervisor"]["pid"] == second.process.pid
    assert rcode(exchange(packet("who.nacos"), first.port)) == 0


@ROOT_ONLY
@pytest.mark.parametrize("options", ["ro", "size=4k,nr_inodes=1"])
@pytest.mark.parametrize("below", [".", "state"])
def test_a_disk_that_takes_no_file_stops_nobody_and_is_said(bridge, tmp_path, options, below):
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "nacosdns", str(mount)], check=True)
    try:
        running = bridge(text=STATIC, modules={}, directory=mount / below).up()
        answered = rcode(exchange(packet("orders.nacos"), running.port))
        refuge = next(path for path in refuges(mount / below) if path.exists())
        command = [sys.executable, "-m", "nacosdns.cli", "status", "-c", str(running.file)]
        until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0, what="a good status")
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        running.signal(signal.SIGTERM)
        code = running.wait()
    finally:
        subprocess.run(["umount", str(mount)], check=True)
    shutil.rmtree(refuge)

    assert (answered, code) == (0, 0)
    assert "NO DISK" in said
    assert running.said("disk.unusable", str(mount), f"sockets={refuge}")


@ROOT_ONLY
def test_a_host_that_takes_the_sockets_nowhere_says_so_of_each_place(bridge, tmp_path):
    """In a mount namespace of its own, where /run, /dev/shm and the disk are read-only."""
    disk = tmp_path / "disk"
    disk.mkdir()
    places = ("/run", "/dev/shm", str(disk))  # noqa: S108  # nothing is made there
    script = "".join(f"mount -t tmpfs -o ro nacosdns {place} && " for place in places) + 'exec "$@"'
    running = bridge(directory=disk / "state", before=("unshare", "-m", "sh", "-c", script, "sh"))
    code = running.wait()
    (line,) = running.said("cache.dir")

    assert code == 2
    assert line.startswith(f"cache.dir {disk / 'state'} is on a read-only file system")
    assert line.endswith(
        "; the sockets find no other place: /run/nacosdns (Read-only file system),"
        f" /dev/shm/nacosdns-{os.geteuid()} (Read-only file system)"
    )


def test_a_directory_that_is_not_ours_to_write_is_the_operators_to_mend(bridge, tmp_path):
    (tmp_path / "file").write_text("")
    running = bridge(directory=tmp_path / "file" / "below")

    assert running.wait() == 2
    assert "cannot be made" in running.lines[-1]


# Starting


def test_a_taken_port_is_one_line_that_names_the_holder_and_exit_2(bridge):
    """S75."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        running = bridge(port=holder.getsockname()[1])
        code = running.wait()

    assert code == 2
    assert len(running.lines) == 1
    assert f"127.0.0.1:{running.port} (udp) is taken by" in running.lines[0]
    assert f"(pid {os.getpid()})" in running.lines[0]


def test_a_second_bridge_on_the_same_port_does_not_share_it(bridge):
    first = bridge().up()
    second = bridge(port=first.port)

    assert second.wait() == 2
    assert "is taken by" in second.lines[-1]
    assert rcode(exchange(packet("who.nacos"), first.port)) == 0


def test_a_second_bridge_on_the_same_directory_is_refused(bridge):
    first = bridge().up()
    second = bridge(directory=first.directory)

    assert second.wait() == 2
    assert "another nacosdns is running" in second.lines[-1]


def test_an_unknown_user_says_how_to_make_it(bridge):
    running = bridge(text='user = "no-such-user"')

    if os.geteuid() == 0:
        assert running.wait() == 2
        assert "useradd --system" in running.lines[-1]
    else:
        running.up()


def reachable_python() -> str:
    """An interpreter of this version that the user nobody may run; nothing without one."""
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    good = python and subprocess.run([python, "-c", ""], user=65534, check=False).returncode == 0
    return python if python and good else ""


def open_up(directory: Path) -> None:
    """Lets every user go into this directory of a test."""
    directory.chmod(0o755)
    for parent in directory.parents:
        if parent != Path("/") and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)


@pytest.fixture
def nobodys_python(tmp_path: Path) -> str:
    """An interpreter that the user nobody may run, and a directory of the test that it may go into."""
    if not reachable_python():
        pytest.skip("no Python of this version that the user nobody may run")
    open_up(tmp_path)
    return reachable_python()


@ROOT_ONLY
def test_ambient_rights_are_the_supervisors_alone_and_outlive_an_upgrade(bridge, tmp_path):
    if not reachable_python() or not shutil.which("setpriv"):
        pytest.skip("no Python of this version that the user nobody may run, or no setpriv")
    open_up(tmp_path)
    before = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--inh-caps=-all,+net_bind_service")
    state = tmp_path / "nobodys"
    state.mkdir()
    os.chown(state, 65534, 65534)
    running = bridge(
        python=reachable_python(), directory=state, before=(*before, "--ambient-caps=+net_bind_service")
    ).up()

    def rights(pid: int) -> tuple[str, str]:
        facts = dict(
            line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "Cap" in line
        )
        return facts["CapEff"], facts["CapAmb"]

    first = [rights(pid) for pid in (running.process.pid, *running.children())]
    running.signal(signal.SIGUSR2)
    running.wait_for("upgrade.done", seconds=60.0)
    second = [rights(pid) for pid in (running.process.pid, *running.children())]

    assert first == second == [("0000000000000400", "0" * 16), *[("0" * 16, "0" * 16)] * 4]


@ROOT_ONLY
def test_children_run_as_the_configured_user_and_own_the_state(bridge, nobodys_python):
    """S75."""
    running = bridge(text='user = "nobody"', python=nobodys_python).up()
    facts = control(running, "services")
    link = (running.directory / "link.sock").stat()

    assert facts["uid"] == 65534
    assert running.directory.stat().st_uid == 65534
    assert (link.st_uid, stat.S_IMODE(link.st_mode)) == (65534, 0o600)
    assert stat.S_IMODE((running.directory / "control.sock").stat().st_mode) == 0o660


@ROOT_ONLY
def test_another_user_at_sighup_gets_the_state_and_the_link_too(bridge, nobodys_python):
    running = bridge(text='user = "nobody"', python=nobodys_python).up()
    theirs, foreign = running.directory / "cache.db", running.directory / "passwd"
    theirs.write_text("")
    os.chown(theirs, 65534, 65534)
    foreign.write_text("")
    foreign.chmod(0o600)
    running.write('user = "daemon"')
    running.signal(signal.SIGHUP)
    running.wait_for("child.ready", times=8, seconds=30.0)
    owners = {path.name: path.stat().st_uid for path in (running.directory, running.directory / "link.sock", theirs)}

    assert set(owners.values()) == {pwd.getpwnam("daemon").pw_uid}, owners
    assert foreign.stat().st_uid == 0
    assert control(running, "services")["uid"] == pwd.getpwnam("daemon").pw_uid


@ROOT_ONLY
def test_a_configuration_that_is_refused_for_its_port_leaves_the_state_to_the_old_user(bridge, nobodys_python):
    running = bridge(text='user = "nobody"', python=nobodys_python).up()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        taken = f'"127.0.0.1:{running.port}", "127.0.0.1:{holder.getsockname()[1]}"'
        running.write('user = "daemon"', listen=taken)
        running.signal(signal.SIGHUP)
        running.wait_for("reload.refused", "is taken by")

    assert running.directory.stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert (running.directory / "link.sock").stat().st_uid == pwd.getpwnam("nobody").pw_uid


@ROOT_ONLY
def test_a_folder_above_the_state_that_is_shut_to_the_user_stops_nobody_and_is_used_when_it_is_open(
    bridge, tmp_path, nobodys_python
):
    shut = tmp_path / "shut"
    fill(shut / "state", 1)
    shut.chmod(0o700)
    text = f'user = "nobody"\n{NO_NACOS}'
    running = bridge(text=text, modules={}, directory=shut / "state", python=nobodys_python).up()
    refuge = next(path for path in refuges(shut / "state") if path.exists())
    said = admin.call(refuge / "control.sock", "status", {})["supervisor"]["disk"]
    before = rcode(exchange(packet("svc-0.nacos"), running.port))
    shut.chmod(0o755)
    running.wait_for("disk.usable")
    until(lambda: rcode(exchange(packet("svc-0.nacos"), running.port)) == 0, what="what the disk knows")
    mended = admin.call(refuge / "control.sock", "status", {})["supervisor"]["disk"]
    running.signal(signal.SIGTERM)
    code = running.wait()
    shutil.rmtree(refuge)

    assert (before, code) == (SERVFAIL, 0)
    assert running.said("disk.unusable", f"{shut} is shut to others")
    assert f"chmod o+x {shut}" in said
    assert mended == ""
    assert (shut / "state" / "cache.db").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert not running.said("child.exited", "status=1")


@ROOT_ONLY
def test_a_disk_that_was_read_only_at_the_start_is_written_when_it_is_not(bridge, tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "nacosdns", str(mount)], check=True)
    try:
        fill(mount / "state", 1)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with StubUpstream() as stub:
            stub.answer("outside.example", "A", "192.0.2.1", ttl_s=600)
            text = f'{NO_NACOS}[forward]\nupstreams = ["{stub.address}"]\n'
            first = bridge(text=text, modules={}, directory=mount / "state").up()
            learned = rcode(exchange(packet("outside.example"), first.port))
            subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
            first.wait_for("disk.usable")
            first.wait_for("child.ready", "child=keeper", times=2)
            known = rcode(exchange(packet("svc-0.nacos"), first.port))
            until(lambda: stored(mount / "state" / "cache.db") == 1, what="the outside answer on disk")
            first.signal(signal.SIGTERM)
            first.wait()
        second = bridge(text=NO_NACOS, modules={}, directory=mount / "state").up()
        again = [rcode(exchange(packet(name), second.port)) for name in ("outside.example", "svc-0.nacos")]
        second.signal(signal.SIGTERM)
        second.wait()
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)

    assert (learned, known, again) == (0, 0, [0, 0])
    assert not second.said("disk.unusable")


def stored(database: Path) -> int:
    """How many outside answers are there by now."""
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            found: int = connection.execute("SELECT count(*) FROM externals").fetchone()[0]
            return found
    except sqlite3.Error:
        return 0


@ROOT_ONLY
def test_a_database_that_a_run_as_root_left_is_given_to_the_user(bridge, tmp_path, nobodys_python):
    state = tmp_path / "state"
    state.mkdir()
    (state / "cache.db").write_text("")
    (state / "cache.db").chmod(0o600)
    (state / "other").write_text("")
    running = bridge(text=f'user = "nobody"\n{STATIC}', modules={}, directory=state, python=nobodys_python).up()
    store = control(running, "status")["keeper"]["store"]

    assert (state / "cache.db").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert (state / "other").stat().st_uid == 0
    assert not store["not_used"]


@ROOT_ONLY
def test_a_python_that_the_user_cannot_run_is_one_line_and_exit_2(bridge, tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "python").symlink_to(sys.executable)
    running = bridge(text='user = "nobody"', python=str(hidden / "python"))

    assert running.wait() == 2
    assert f"the user nobody cannot run {hidden / 'python'}" in running.lines[-1]


@ROOT_ONLY
def test_what_else_fails_at_such_a_start_adds_no_line(tmp_path):
    """As where the files of Python are out of reach too: every part fails in a way of its own."""
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    file = tmp_path / "x.toml"
    server = f'[server]\nlisten = ["127.0.0.1:{free_port()}"]\nuser = "nobody"\n'
    file.write_text(f'{server}[cache]\ndir = "{tmp_path / "state"}"\n[web]\nlisten = ""\n[nacos]\nservers = []\n')
    script = (
        f"import sys\nfrom nacosdns import cli, guarding\nsys.executable = '{hidden / 'python'}'\n"
        "async def broken(*_):\n raise LookupError('unknown encoding')\n"
        f"guarding.keep = broken\nsys.exit(cli.main(['run', '-c', '{file}']))\n"
    )
    (hidden / "python").symlink_to(sys.executable)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("timestamp=")]

    assert done.returncode == 2
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"nacosdns: the user nobody cannot run {hidden / 'python'}")


@ROOT_ONLY
def test_no_right_to_bind_says_what_to_do(tmp_path):
    """S75."""
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) < 54:
        pytest.skip("on this host anybody may bind port 53")
    script = (
        "import os\nfrom nacosdns.edge.sockets import Listeners\nfrom nacosdns.errors import StartError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n Listeners().want(['127.0.0.1:53'], 1, [])\nexcept StartError as error:\n print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "no right to bind 127.0.0.1:53" in done.stdout
    assert "CAP_NET_BIND_SERVICE" in done.stdout


# Secrets


def test_the_password_goes_to_the_keeper_alone_and_is_in_no_argument_or_environment(bridge, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("s3cret-1\n")
    running = bridge(text=f'[nacos]\nusername = "n"\npassword_file = "{secret}"').up()
    seen = [Path(f"/proc/{pid}/{part}").read_bytes() for pid in running.children() for part in ("cmdline", "environ")]

    assert running.said("fake.password", "password=s3cret-1", "role=keeper")
    assert not running.said("s3cret-1", "role=web")
    assert not any(b"s3cret" in content for content in seen)


def test_a_changed_password_file_reaches_the_keeper_without_a_signal(bridge, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("s3cret-1\n")
    running = bridge(text=f'[nacos]\nusername = "n"\npassword_file = "{secret}"').up()
    secret.write_text("s3cret-2\n")

    running.wait_for("fake.configured", "password=s3cret-2", "role=keeper")
    assert not running.said("s3cret-2", "role=front")


# Reload


def test_sighup_hands_the_new_configuration_to_every_child(bridge):
    running = bridge().up()
    running.write("[policy]\nttl_s = 5")
    running.signal(signal.SIGHUP)
    running.wait_for("reloaded")

    running.wait_for("fake.configured", times=4)
    assert running.said("child.exited") == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[server", "not TOML"), ("[polcy]\nttl_s = 5", "did you mean"), ('[policy]\nttl_s = "5"', "Expected")],
)
def test_a_bad_configuration_is_refused_and_the_old_one_stays(bridge, text, reason):
    """S80."""
    running = bridge().up()
    running.write(text)
    running.signal(signal.SIGHUP)
    running.wait_for("reload.refused", reason)

    assert rcode(exchange(packet("who.nacos"), running.port)) == 0
    assert running.said("fake.configured") == []
    running.write("")
    running.signal(signal.SIGHUP)
    running.wait_for("reloaded")


def test_certificates_that_cannot_be_read_are_refused_and_the_old_configuration_stays(bridge):
    running = bridge().up()
    files = "".join(f'{key} = "/nonexistent/{key}"\n' for key in ("ca_file", "cert_file", "key_file"))
    running.write(f"[nacos]\n{files}")
    running.signal(signal.SIGHUP)
    running.wait_for("reload.refused", "/nonexistent/ca_file cannot be read")

    assert not running.said("reloaded")
    assert control(running, "status")["supervisor"]["reload"]["refused"].startswith("nacos.ca_file")


@ROOT_ONLY
def test_certificates_have_to_be_readable_by_the_user_of_the_children(bridge, tmp_path, nobodys_python):
    running = bridge(text='user = "nobody"', python=nobodys_python).up()
    file = tmp_path / "ca.pem"
    file.touch(mode=0o600)
    running.write(f'user = "nobody"\n[nacos]\nca_file = "{file}"\ncert_file = "{file}"\nkey_file = "{file}"\n')
    running.signal(signal.SIGHUP)
    running.wait_for("reload.refused", "ca.pem cannot be read (Permission denied)")


def test_a_new_address_is_answered_after_sighup_and_the_old_one_is_given_back_without_a_loss(bridge):
    running = bridge().up()
    old, new = running.port, free_port()
    lost: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                exchange(packet("who.nacos"), new if running.said("reloaded") else old, seconds=2.0)
            except TimeoutError:
                lost.append(1)

    client = threading.Thread(target=ask)
    client.start()
    running.write("", listen=f'"127.0.0.1:{new}"')
    running.signal(signal.SIGHUP)
    running.wait_for("child.ready", "child=front", times=4, seconds=30.0)
    stop.set()
    client.join()

    assert lost == []
    until(lambda: is_free(old), what="the end of the old socket")


def test_a_taken_new_address_is_refused_and_the_old_ones_go_on(bridge):
    running = bridge().up()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        running.write("", listen=f'"127.0.0.1:{running.port}", "127.0.0.1:{holder.getsockname()[1]}"')
        running.signal(signal.SIGHUP)
        running.wait_for("reload.refused", "is taken by")

    assert rcode(exchange(packet("who.nacos"), running.port)) == 0


def test_the_state_directory_cannot_change_while_running(bridge, tmp_path):
    running = bridge().up()
    running.file.write_text(running.file.read_text().replace(str(running.directory), str(tmp_path / "elsewhere")))
    running.signal(signal.SIGHUP)

    running.wait_for("reload.refused", "cache.dir cannot change")


def test_fronts_and_web_come_and_go_by_sighup(bridge):
    running = bridge().up()
    running.write("fronts = 2")
    running.file.write_text(running.file.read_text().replace(f'"127.0.0.1:{running.web_port}"', '""'))
    running.signal(signal.SIGHUP)
    running.wait_for("child.exited", "child=web")
    until(lambda: len({running.pid_of_reader() for _ in range(20)}) == 2, 30.0, "the second front's work")

    assert len(running.said("child.exited", "child=web")) == 1


# Control


def test_requests_reach_the_part_that_knows(bridge):
    running = bridge().up()
    fronts = {int(line.partition("pid=")[2].split()[0]) for line in running.said("child.ready", "child=front")}

    assert control(running, "ask", name="orders.nacos", type="A")["pid"] == running.pid_of_reader()
    assert control(running, "services")["pid"] not in fronts
    assert control(running, "ask", name="x")["arguments"] == {"name": "x"}


def test_a_part_that_says_no_or_nothing_is_an_error_within_its_deadline(bridge):
    running = bridge().up()

    with pytest.raises(ControlError, match="nothing is protected"):
        control(running, "cache.accept")
    with pytest.raises(ControlError, match="unknown request"):
        control(running, "sing")
    os.kill(pid_of_keeper(running), signal.SIGSTOP)
    with pytest.raises(ControlError, match="the keeper did not answer within 1 s"):
        control(running, "services")
    assert control(running, "status")["keeper"] == {"error": "the keeper did not answer within 1 s"}


def test_status_names_every_child_and_a_dead_part(bridge):
    running = bridge(modules=FAKES | {"keeper": "fakes.front_crashing"})
    running.wait_for("child.ready", times=3)
    running.wait_for("front.reads")
    status = control(running, "status")

    assert [child["role"] for child in status["supervisor"]["children"]] == ["keeper", "web", "front", "front"]
    assert "the keeper is" in status["keeper"]["error"]
    assert set(status["fronts"]) == {"3", "4"}
    with pytest.raises(ControlError, match="the keeper is"):
        control(running, "services")


def test_nonsense_on_the_control_socket_costs_one_connection(bridge):
    running = bridge().up()
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", struct.pack("!I", 3) + b"abc", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(5.0)
            sock.connect(str(running.directory / "control.sock"))
            sock.sendall(nonsense)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(100) == b""

    assert control(running, "services")


@on_a_loop
async def test_what_somebody_asked_who_did_not_wait_for_the_answer_is_not_carried_out(tmp_path):
    """As while the supervisor was stopped: the command said that it failed."""
    carried_out = []

    async def answer(ask: frames.Ask) -> frames.Told:
        carried_out.append(ask.verb)
        return frames.Told(ask.id, frames.encode(None))

    with admin.Listener(tmp_path / "control.sock", 0o600) as listener:
        listener.open()
        with pytest.raises(ControlSilent):
            admin.call(listener.path, "upgrade", {}, deadline_s=0.05)  # nobody serves yet
        serving = asyncio.create_task(listener.serve(answer))
        await asyncio.to_thread(admin.call, listener.path, "status", {})
        serving.cancel()

    assert carried_out == ["status"]


# Addresses that come late


@pytest.fixture
def network():
    """The name of a network namespace of our own."""
    name = f"nacosdns-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


@ROOT_ONLY
def test_an_interface_and_an_address_that_come_late_are_answered_without_a_restart(bridge, network):
    """S78."""

    def ip(words: str) -> None:
        subprocess.run(["ip", "-n", network, *words.split()], check=True)

    def dig(host: str) -> str:
        command = ["ip", "netns", "exec", network, "dig", "+short", "+tries=1", "+time=1", "-p", "5353", f"@{host}"]
        return subprocess.run([*command, "who.nacos"], capture_output=True, text=True, check=False).stdout

    ip("link set lo up")
    listen = '"127.0.0.1:5353", "10.9.9.9:5353", "late0:5353"'
    running = bridge(listen=listen, before=("ip", "netns", "exec", network)).up()
    missing = running.said("listen.address_missing", "10.9.9.9"), running.said("listen.interface_missing", "late0")
    ip("link add late0 type bridge")
    ip("link set late0 up")
    ip("addr add 10.8.8.8/24 dev late0")
    ip("addr add 10.9.9.9/32 dev lo")

    assert all(missing)
    running.wait_for("listen.address_appeared", "10.9.9.9")
    until(lambda: "." in dig("10.9.9.9"), what="an answer of the late address")
    until(lambda: "." in dig("10.8.8.8"), 30.0, "an answer of the late interface")
    assert "." in dig("127.0.0.1")
    ip("addr del 10.9.9.9/32 dev lo")
    running.wait_for("listen.address_gone", "10.9.9.9")
    assert control(running, "status")["supervisor"]["missing"] == ["10.9.9.9:5353"]
    ip("addr add 10.9.9.9/32 dev lo")
    running.wait_for("listen.address_appeared", "10.9.9.9", times=2)
    assert "." in dig("10.9.9.9")
    assert not running.said("child.killed")
