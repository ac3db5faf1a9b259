"""The host gives too little, too late, or nothing for a while: descriptors, memory, ports, time."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.ground import answers, await_new, collect, freeze, kill, pid_of, thaw
from chaos.stored import NO_NACOS, addresses_of, fill
from fakes.running import FAKES, TWO_ORDERS, Bridge, exchange, free_port, packet, until
from fakes.seen import lives

if TYPE_CHECKING:
    from chaos.ground import Drill, Ground

DRILLS: list[Drill] = []
CGROUP = Path("/sys/fs/cgroup/memory")
SERVFAIL = 2
SO_RCVBUFFORCE = 33


def _tree(running: Bridge) -> list[int]:
    """The supervisor and its children."""
    return [running.process.pid, *running.children()]


@collect(DRILLS)
def supervisor_killed(ground: Ground) -> None:
    """No orphan is left on the port: every child ends within two seconds, and another bridge starts at once."""
    running = ground.bridge(TWO_ORDERS)
    pids = _tree(running)
    kill(pids[0])
    began = time.monotonic()
    until(lambda: not any(map(lives, pids)), 2, "the end of every child")
    ground.found(gone_after_ms=round((time.monotonic() - began) * 1000))
    again = ground.bridge(TWO_ORDERS, port=running.port, directory=running.directory)
    ground.hold(answers(again.port, "orders.nacos"), "the next bridge does not answer")


@collect(DRILLS)
def supervisor_stopped(ground: Ground) -> None:
    """A supervisor that hangs changes no answer, and restarts nothing when it goes on."""
    running = ground.bridge(TWO_ORDERS)
    before = _tree(running)
    load = ground.load(running.port).expect_orders()
    with ground.under_load(load):
        freeze(before[0])
        ground.at_end(thaw, before[0])
        time.sleep(ground.span(30, 4))
        thaw(before[0])
        time.sleep(ground.span(5, 2))
    ground.hold(_tree(running) == before, "a child was replaced")


@collect(DRILLS, needs=["root"])
def suspended(ground: Ground) -> None:
    """All processes stop (the host sleeps): what was asked meanwhile is old and dropped, then every answer is right again."""
    fill(ground.directory() / "state", 5)
    running = ground.bridge(NO_NACOS, directory=ground.place / "d1" / "state")
    pids = _tree(running)
    for pid in pids:
        freeze(pid)
        ground.at_end(thaw, pid)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as old:
        old.connect(("127.0.0.1", running.port))
        for number in range(50):
            old.send(packet("svc-0.nacos", number))
        time.sleep(ground.span(3600, 4))
        for pid in pids:
            thaw(pid)
        until(lambda: answers(running.port, "svc-0.nacos"), 10, "an answer")
        old.settimeout(0.2)
        late = 0
        with contextlib.suppress(TimeoutError):
            while True:
                old.recv(512)
                late += 1
    load = ground.load(running.port)
    for number in range(5):
        load.expect(f"svc-{number}.nacos", *addresses_of(number))
    with ground.under_load(load):
        time.sleep(2)
    ground.found(answered_although_old=late)
    ground.hold(late == 0, f"{late} questions older than two seconds were answered")


@collect(DRILLS)
def fronts_crash_at_start(ground: Ground) -> None:
    """No front ever comes up: every question gets SERVFAIL within 50 ms, so that clients go to their next server at once."""
    crashing = Bridge(ground.directory(), text=TWO_ORDERS, modules=FAKES | {"front": "fakes.front_crashing"})
    ground.at_end(crashing.close)
    crashing.wait_for("child.exited", "child=front", times=2)
    slowest = 0.0
    ends = time.monotonic() + ground.span(30, 4)
    while time.monotonic() < ends:
        began = time.monotonic()
        reply = exchange(packet("orders.nacos"), crashing.port)
        slowest = max(slowest, time.monotonic() - began)
        ground.hold(reply[3] & 15 == SERVFAIL, f"rcode {reply[3] & 15}")
        time.sleep(0.02)
    starts = len(crashing.said("child.exited", "child=front"))
    ground.found(slowest_ms=round(slowest * 1000), starts=starts)
    ground.hold(slowest < ground.span(0.05, 1.0), f"the slowest SERVFAIL took {slowest * 1000:.0f} ms")
    ground.hold(starts < ground.span(40, 20), f"{starts} starts: no back-off")


@collect(DRILLS)
def descriptors_exhausted(ground: Ground) -> None:
    """With no descriptor left for connections every question over UDP is answered; connections work again when some close."""
    running = ground.bridge(TWO_ORDERS)
    front = pid_of(running, "front", active=True)
    used = len(list(Path(f"/proc/{front}/fd").iterdir()))
    resource.prlimit(front, resource.RLIMIT_NOFILE, (used + 5, used + 5))
    load = ground.load(running.port).expect_orders()
    with ground.under_load(load):
        held = [socket.create_connection(("127.0.0.1", running.port), 1) for _ in range(60)]
        time.sleep(ground.span(20, 3))
        for sock in held:
            sock.close()
    ground.hold(pid_of(running, "front", active=True) == front, "the front was replaced")

    def by_tcp() -> bool:
        with socket.create_connection(("127.0.0.1", running.port), 1) as sock:
            query = packet("orders.nacos")
            sock.settimeout(1)
            sock.sendall(len(query).to_bytes(2, "big") + query)
            with contextlib.suppress(OSError):
                return len(sock.recv(512)) > 12
        return False

    until(by_tcp, 15, "an answer over TCP")


@collect(DRILLS, needs=["root"])
def keeper_out_of_memory(ground: Ground) -> None:
    """The kernel kills each keeper that needs too much memory: answers go on, starts back off, and with memory it is there again."""
    if not CGROUP.is_dir():
        ground.found(left_out="this kernel has no memory controller of the first kind")
        return
    running = ground.bridge(TWO_ORDERS)
    group = CGROUP / f"nacosdns-chaos-{os.getpid()}"
    group.mkdir()
    ground.at_end(_remove, group)
    (group / "memory.limit_in_bytes").write_text(str(4 << 20))
    load = ground.load(running.port).expect_orders()
    with ground.under_load(load):
        old = pid_of(running, "keeper")
        known, kills = set(_tree(running)), int(ground.span(5, 2))
        kill(old)
        ends = time.monotonic() + 60
        ready = len(running.said("child.ready", "child=keeper"))
        while _oom_kills(group) < kills:
            ground.hold(time.monotonic() < ends, f"{_oom_kills(group)} kills by the kernel")
            for pid in set(_tree(running)) - known:
                known.add(pid)
                with contextlib.suppress(OSError):
                    (group / "cgroup.procs").write_text(str(pid))
            if (
                len(running.said("child.ready", "child=keeper")) > ready
            ):  # it was seen too late, when it had all it needs
                ready += 1
                kill(pid_of(running, "keeper"))
            time.sleep(0.001)
        await_new(running, "keeper", old)
        until(lambda: len(running.said("child.ready", "child=keeper")) > ready, 30, "a keeper that is ready")
    ground.found(kills_by_the_kernel=kills)


def _oom_kills(group: Path) -> int:
    return int((group / "memory.oom_control").read_text().split()[-1])


def _remove(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()


@collect(DRILLS)
def port_taken_at_boot(ground: Ground) -> None:
    """Another program holds the port for a while: each start says who in one line and ends; the first one after that answers."""
    port = free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", port))
        refused, ends = 0, time.monotonic() + ground.span(30, 3)
        while time.monotonic() < ends:
            running = ground.bridge(TWO_ORDERS, wait=False, port=port)
            ground.hold(running.wait(10) == 2, "it did not end with 2")
            ground.hold(f"(pid {os.getpid()})" in running.lines[-1], f"it does not name the holder: {running.lines}")
            refused += 1
            time.sleep(1.0)
    running = ground.bridge(TWO_ORDERS, port=port)
    ground.hold(answers(port, "orders.nacos"), "it does not answer")
    ground.found(refused=refused)


@collect(DRILLS, needs=["root", "sysctl"])
def small_receive_buffer(ground: Ground) -> None:
    """Where the kernel grants 212,992 bytes only, 500 questions at once are still all answered, and the start says what it covers."""
    running = ground.bridge(TWO_ORDERS, before=("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        sock.connect(("127.0.0.1", running.port))
        sock.settimeout(2)
        front = pid_of(running, "front", active=True)
        freeze(front)
        for number in range(500):
            sock.send(packet("orders.nacos", number))
        thaw(front)
        answered = 0
        with contextlib.suppress(TimeoutError):
            while answered < 500:
                sock.recv(512)
                answered += 1
    ground.found(answered=answered, said=len(running.said("receive")))
    ground.hold(answered >= 400, f"{answered} of 500 answered")


@collect(DRILLS, needs=["faketime"])
def clock_moved(ground: Ground) -> None:
    """The wall clock jumps an hour ahead and a day back: no answer changes, nothing expires, no front is replaced."""
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")))
    file = ground.directory() / "clock"
    file.write_text("+0")
    state = ground.directory() / "state"
    fill(state, 10)
    preload = (f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={file}", "FAKETIME_NO_CACHE=1")
    monotonic = "FAKETIME_DONT_FAKE_MONOTONIC=1"
    running = ground.bridge(NO_NACOS, directory=state, before=("env", *preload, monotonic))
    before = _tree(running)
    load = ground.load(running.port)
    for number in range(10):
        load.expect(f"svc-{number}.nacos", *addresses_of(number))
    with ground.under_load(load):
        for jump in ("+1h", "-1d", "+0"):
            file.write_text(jump)
            time.sleep(ground.span(40, 3))
    ground.hold(_tree(running) == before, "a child was replaced")
