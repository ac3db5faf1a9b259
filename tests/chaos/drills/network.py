"""The way to Nacos is cut, slow, lossy, half-open; the link is given garbage or read by nobody; addresses come late and move."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.ground import BATCH, await_new, collect, freeze, kill, pid_of, status, thaw
from fakes.asking import rcode, until_says
from fakes.running import TWO_ORDERS, until
from fakes.upstream import StubUpstream

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.ground import Drill, Ground, Load
    from fakes.proxy import Proxy
    from fakes.running import Bridge

DRILLS: list[Drill] = []
NACOS = ("java", "mvn", "curl")
BEFORE, AFTER = ("10.0.0.1", "10.0.0.2", "10.0.0.3"), ("10.0.0.1", "10.0.0.2", "10.0.0.4")
NOBODY = 65_534
SHOWN_OUT = 3
DEADLINE_S = 2.6
SYS_PIDFD_GETFD = 438
CONNECTED = "03"


# ---- Nacos


def is_followed(running: Bridge, services: int = 1) -> bool:
    """Whether Nacos is connected and pushes so many services to the keeper."""
    keeper = status(running).get("keeper", {})
    spaces = (keeper.get("registry") or {}).get("namespaces", {})
    return keeper.get("subscribed", 0) >= services and all(space["connected"] for space in spaces.values())


def _on_the_way(ground: Ground, harm: Callable[[Proxy], None], seconds: float) -> Bridge:
    """The way to Nacos is harmed for so long: no answer changes; what changes afterwards arrives."""
    others = {f"s{n}": [f"10.3.{n}.1", f"10.3.{n}.2"] for n in range(40)}
    nacos = ground.nacos()
    way = ground.proxy(nacos)
    holder = ground.crowd(nacos).hold({"orders": BEFORE, **others})
    running = ground.bridge(f'[nacos]\nservers = ["{way.address}"]\n')
    load = ground.load(running.port)
    for service, held in {"orders": BEFORE, **others}.items():
        until_says(running.port, f"{service}.nacos", set(held))
        load.expect(f"{service}.nacos", *held)
    with ground.under_load(load):
        harm(way)
        time.sleep(seconds)
        way.clear()
        began = time.monotonic()
        until(lambda: is_followed(running, len(others) + 1), 60, "every subscription after the harm")
        followed = time.monotonic() - began
        load.expect("orders.nacos", *{*BEFORE, *AFTER}, at_least=len(AFTER))
        holder.hold({"orders": AFTER})
        arrived = until_says(running.port, "orders.nacos", set(AFTER), seconds=15)
        load.expect("orders.nacos", *AFTER)
    downs = len(running.said("registry.disconnected"))
    ground.found(connections=way.connections, resets=way.resets, seen_down=downs)
    ground.found(followed_after_s=round(followed, 1), change_after_ms=round(arrived * 1000))
    return running


@collect(DRILLS, needs=NACOS, full_only="the half-open way shows the return, nacos-wiped the refusals")
def way_to_nacos_cut(ground: Ground) -> None:
    """Connections to Nacos are refused for a while: no answer changes, and what changes afterwards arrives."""
    _on_the_way(ground, lambda way: way.refuse(), ground.span(60, 4))


@collect(DRILLS, needs=NACOS, full_only="little can go wrong that the half-open one does not show")
def way_to_nacos_slow(ground: Ground) -> None:
    """Everything to and from Nacos takes 200 ms: no answer changes, nothing is taken for dead, and a change arrives."""
    running = _on_the_way(ground, lambda way: way.slow(0.2), ground.span(60, 5))
    ground.hold(not running.said("registry.disconnected"), "it was taken for dead")


def _lossy(way: Proxy) -> None:
    way.lose(stalls=0.2, breaks=0.02)
    way.aim(way.target)


@collect(DRILLS, needs=NACOS, full_only="little can go wrong that the half-open one does not show")
def way_to_nacos_lossy(ground: Ground) -> None:
    """A fifth of what is sent is held up for up to a second, and now and then its connection is reset: no answer changes."""
    _on_the_way(ground, _lossy, ground.span(90, 10))


@collect(DRILLS, needs=NACOS)
def way_to_nacos_half_open(ground: Ground) -> None:
    """Nothing is forwarded and nothing closed: the keeper notices within 25 s, no answer changes, and a change arrives."""
    running = _on_the_way(ground, lambda way: way.hang(), ground.span(60, 25))
    ground.hold(running.said("registry.disconnected"), "nobody noticed")


# ---- the link between keeper and fronts


def _link(running: Bridge) -> str:
    return str(running.directory / "link.sock")


def _cut_links(running: Bridge, keeper: int) -> int:
    """Shuts the keeper's connections to the fronts down, by descriptors of our own for them; how many."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    linked = {line.split()[6] for line in lines if line.endswith(_link(running)) and line.split()[5] == CONNECTED}
    taken = os.pidfd_open(keeper)
    cut = 0
    for entry in Path(f"/proc/{keeper}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(entry.readlink()).removeprefix("socket:[").removesuffix("]") in linked:
                number = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, taken, int(entry.name), 0)
                if number < 0:
                    raise OSError(ctypes.get_errno(), "pidfd_getfd")
                with socket.socket(fileno=number) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
                cut += 1
    os.close(taken)
    return cut


@collect(DRILLS, needs=["root"])
def link_cut(ground: Ground) -> None:
    """The connections between keeper and fronts break, again and again: no answer changes, nobody is replaced, all join again."""
    running = ground.bridge(TWO_ORDERS)
    keeper, front = pid_of(running, "keeper"), pid_of(running, "front", active=True)
    load = ground.load(running.port).expect_orders()
    cuts = 0
    with ground.under_load(load):
        for _ in range(int(ground.span(20, 3))):
            until(lambda: status(running)["keeper"]["fronts"] == 2, 10, "two fronts on the link")
            cuts += _cut_links(running, keeper)
        until(lambda: status(running)["keeper"]["fronts"] == 2, 10, "two fronts on the link")
    ground.found(cuts=cuts)
    ground.hold(cuts >= 4, f"only {cuts} connections were found and cut")
    ground.hold(pid_of(running, "keeper") == keeper, "the keeper was replaced")
    ground.hold(pid_of(running, "front", active=True) == front, "the front was replaced")


GARBAGE = (b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\xff" * 64, b"\x00\x00\x00\x05\xc1\xc1\xc1\xc1\xc1", b"")


@collect(DRILLS, needs=["root"])
def link_garbled(ground: Ground) -> None:
    """Whoever writes garbage to the link, or is not one of us, is shown out: nothing else is cut, no answer changes."""
    running = ground.bridge(TWO_ORDERS)
    keeper = pid_of(running, "keeper")
    place = _link(running)
    load = ground.load(running.port).expect_orders()
    refused = 0
    with ground.under_load(load):
        for _ in range(int(ground.span(200, 10))):
            refused += sum(map(_shown_out, (place,) * len(GARBAGE), GARBAGE))
        stranger = subprocess.run(["false"], cwd=running.directory, preexec_fn=_stranger, check=False, timeout=20)
        ground.hold(stranger.returncode == SHOWN_OUT, f"a stranger was not shown out: {stranger.returncode}")
    ground.hold(pid_of(running, "keeper") == keeper, "the keeper was replaced")
    ground.hold(status(running)["keeper"]["fronts"] == 2, "a front lost its link")
    ground.found(shown_out=refused)


def _stranger() -> None:
    """Another user of the host, who already stands in the directory, in a process of its own."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        try:
            sock.connect("link.sock")
            said = sock.recv(1)
        except (PermissionError, ConnectionResetError):
            said = b""
    os._exit(0 if said else SHOWN_OUT)


def _shown_out(place: str, garbage: bytes) -> bool:
    """Whether the keeper closes this connection; that it says hello first is no harm."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(place)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    return True


@collect(DRILLS)
def link_full(ground: Ground) -> None:
    """The keeper reads nothing while outside names by the thousand are learned: the front waits for nobody, all is answered."""
    names = int(ground.span(6_000, 2_500))
    with StubUpstream() as stub:
        stub.answer_everything("192.0.2.1")
        running = ground.bridge(TWO_ORDERS.replace("upstreams = []", f'upstreams = ["{stub.address}"]'))
        keeper = pid_of(running, "keeper")
        load = ground.load(running.port, 300).expect_orders()
        learner = ground.load(running.port, 500)
        for number in range(names):
            learner.expect(f"n{number}.example", "192.0.2.1")
        with ground.under_load(load):
            freeze(keeper)
            ground.at_end(thaw, keeper)
            learner.go()
            time.sleep(ground.span(9, 5))
            thaw(keeper)
            time.sleep(ground.span(names / 500, 2))
        ground.require(learner.end())


# ---- addresses


def _network(ground: Ground) -> tuple[str, Callable[[str], None]]:
    """A network namespace of our own, and ``ip`` in it."""
    name = f"nacosdns-chaos-{os.getpid()}-{time.monotonic_ns()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    ground.at_end(lambda: subprocess.run(["ip", "netns", "del", name], check=True))

    def ip(words: str) -> None:
        subprocess.run(["ip", "-n", name, *words.split()], check=True)

    return name, ip


@collect(DRILLS, needs=["root", "ip"])
def ipv6_only(ground: Ground) -> None:
    """On a host with no IPv4 address at all it starts, answers, takes over from a killed front, and is ready."""
    name, ip = _network(ground)
    ip("link set lo up")
    ip("addr del 127.0.0.1/8 dev lo")
    inside = ("ip", "netns", "exec", name)
    web = "NACOSDNS_WEB_LISTEN=[::1]:9353"
    running = ground.bridge(TWO_ORDERS, listen='"[::1]:53"', before=(*inside, "env", web), port=53)
    load = ground.load(53, host="::1", prefix=inside).expect_orders()
    with ground.under_load(load, lost=BATCH):
        old = pid_of(running, "front", active=True)
        kill(old)
        await_new(running, "front", old, active=True)
        time.sleep(ground.span(20, 2))
    ready = subprocess.run([*inside, "curl", "-sf", "http://[::1]:9353/readyz"], capture_output=True, check=False)
    ground.hold(ready.returncode == 0, f"it is not ready: {ready.stdout.decode()}")


@collect(DRILLS, needs=["root", "ip"])
def address_late_and_moving(ground: Ground) -> None:
    """An address that comes after the start is answered as soon as it is there, and still when it moves to another device."""
    name, ip = _network(ground)
    for words in ("set lo up", "add here type bridge", "set here up", "add there type bridge", "set there up"):
        ip(f"link {words}")
    inside = ("ip", "netns", "exec", name)
    running = ground.bridge(TWO_ORDERS, listen='"127.0.0.1:53", "10.9.9.9:53"', before=inside, port=53)
    steady = ground.load(53, prefix=inside).expect_orders()
    with ground.under_load(steady):
        time.sleep(ground.span(30, 1))
        ip("addr add 10.9.9.9/32 dev here")
        load = ground.load(53, 200, host="10.9.9.9", prefix=inside).expect_orders().go()
        time.sleep(ground.span(10, 1))
        ground.require(load.end())
        for old, new in (("here", "there"), ("there", "here")):
            ip(f"addr del 10.9.9.9/32 dev {old}")
            time.sleep(ground.span(5, 0.5))
            ip(f"addr add 10.9.9.9/32 dev {new}")
            load = ground.load(53, 200, host="10.9.9.9", prefix=inside)
            load.expect_orders().go()
            time.sleep(ground.span(10, 1))
            ground.require(load.end())
    ground.hold(running.said("listen.address_appeared"), "the log does not say that the address came")


# ---- upstreams


CACHED = [f"c{number}.example" for number in range(20)]


def _forwarding(ground: Ground, *upstreams: StubUpstream) -> tuple[Bridge, Load]:
    """A bridge that has asked for twenty names whose time to live is over by now, and a load that asks for them."""
    listed = ", ".join(f'"{one.address}"' for one in upstreams)
    for one in upstreams:
        one.answer_everything("192.0.2.1")
        for name in CACHED:
            one.answer(name, "A", "192.0.2.7", ttl_s=1)
    running = ground.bridge(TWO_ORDERS.replace("upstreams = []", f"upstreams = [{listed}]"))
    load = ground.load(running.port, 300).expect_orders()
    for name in CACHED:
        until_says(running.port, name, {"192.0.2.7"})
        load.expect(name, "192.0.2.7")
    time.sleep(1.5)
    return running, load


def _broken(ground: Ground, stub: StubUpstream, harm: str) -> Callable[[], None]:
    """Harms an upstream for a while, as long as it is told; the function that heals it."""
    match harm:
        case "black hole":
            stub.is_mute = True
        case "refusing":
            stub.close_port()
        case "slow":
            stub.delay_s = 1.0
        case "flapping":
            for _ in range(int(ground.span(15, 2))):
                stub.close_port()
                time.sleep(0.7)
                stub.open_port()
                time.sleep(0.7)

    def heal() -> None:
        stub.is_mute, stub.delay_s = False, 0.0
        if harm == "refusing":
            stub.open_port()

    return heal


HARMS = ("black hole", "refusing", "slow", "flapping")


@collect(DRILLS)
def one_upstream_of_two(ground: Ground) -> None:
    """One upstream of two is a black hole, refuses, is slow, comes and goes: every name is answered, new ones too."""
    with StubUpstream() as bad, StubUpstream() as good:
        running, load = _forwarding(ground, bad, good)
        fresh = ground.load(running.port, 20)
        for number in range(2000):
            fresh.expect(f"fresh{number}.example", "192.0.2.1")
        with ground.under_load(load):
            fresh.go()
            for harm in HARMS:
                heal = _broken(ground, bad, harm)
                time.sleep(ground.span(20, 2))
                heal()
                time.sleep(ground.span(5, 0.5))
        ground.require(fresh.end())
        ground.found(slowest_new_ms=round(fresh.end().slowest_ms))


@collect(DRILLS)
def every_upstream(ground: Ground) -> None:
    """The only upstream is a black hole, refuses, is slow, flaps: old answers stay, new names are SERVFAIL within 50 ms.

    Once it is known to be down, that is; the first ones wait as long as the deadline, which is kept.
    """
    with StubUpstream() as only:
        running, load = _forwarding(ground, only)
        with ground.under_load(load):
            for harm in HARMS:
                heal = _broken(ground, only, harm)
                ends, waits = time.monotonic() + ground.span(20, 3.5), []
                while time.monotonic() < ends and harm != "flapping":
                    began = time.monotonic()
                    said = rcode(running.port, f"new{began}.example")
                    waits.append(time.monotonic() - began)
                    ground.hold(said == ("NOERROR" if harm == "slow" else "SERVFAIL"), f"{harm}: {said}")
                heal()
                if waits:
                    ground.hold(max(waits) < DEADLINE_S, f"{harm}: an answer took {max(waits):.1f} s")
                    ground.found(**{f"{harm.replace(' ', '_')}_ms": f"{waits[0] * 1000:.0f} then {_middle(waits):.0f}"})
                if harm in {"black hole", "refusing"}:
                    known_down = sorted(waits[3:])[: max(1, len(waits) * 9 // 10)]
                    ground.hold(
                        known_down and known_down[-1] < ground.span(0.05, 0.5), f"{harm}: SERVFAIL after {waits[-5:]}"
                    )
                began = time.monotonic()
                until_says(running.port, f"after-{harm.replace(' ', '-')}.example", {"192.0.2.1"}, seconds=20)
                ground.found(**{f"{harm.replace(' ', '_')}_over_s": round(time.monotonic() - began, 1)})


def _middle(waits: list[float]) -> float:
    return sorted(waits)[len(waits) // 2] * 1000
