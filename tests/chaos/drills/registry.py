"""Nacos and its providers are killed, stopped, wiped, restored from too old a backup, exchanged for others."""

from __future__ import annotations

import shutil
import socket
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from chaos.drills.network import NACOS, is_followed
from chaos.ground import BrokenError, collect, status
from chaos.stored import addresses_of, fill
from fakes.asking import addresses, cli, until_says
from fakes.cluster import Cluster
from fakes.real_nacos import RealNacos, free_nacos_port
from fakes.running import until
from fakes.upstream import StubUpstream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.ground import Drill, Ground, Load
    from fakes.running import Bridge

DRILLS: list[Drill] = []
ORDERS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def _bridge(ground: Ground, *servers: str, settle_s: float = 180, stable_s: float = 30, window_s: float = 45) -> Bridge:
    """A bridge with these times of protection."""
    listed = ", ".join(f'"{server}"' for server in servers)
    nacos = f"[nacos]\nservers = [{listed}]\nsettle_s = {settle_s:g}\nstable_s = {stable_s:g}\n"
    return ground.bridge(f"{nacos}[policy]\nempty_window_s = {window_s:g}\n")


def _expect_all(ground: Ground, running: Bridge, services: Mapping[str, Sequence[str]]) -> Load:
    """A load that asks for all of these, once each of them is answered whole."""
    load = ground.load(running.port, 300)
    for service, held in services.items():
        until_says(running.port, f"{service}.nacos", set(held))
        load.expect(f"{service}.nacos", *held)
    until(lambda: is_followed(running, len(services)), 30, "a subscription of each service")
    return load


def _services(count: int, instances: int, room: int = 0) -> dict[str, list[str]]:
    return {f"s{n}": [f"10.{room}.{n}.{part + 1}" for part in range(instances)] for n in range(count)}


def _three_orders(ground: Ground) -> tuple[RealNacos, Bridge, Load]:
    """A Nacos that knows ``ORDERS``, a bridge that follows it, and a load that expects them all."""
    nacos = ground.nacos()
    ground.provider(nacos, "orders", *ORDERS)
    running = ground.bridge(f'[nacos]\nservers = ["{nacos.address}"]\n')
    until_says(running.port, "orders.nacos", set(ORDERS))
    return nacos, running, ground.load(running.port).expect("orders.nacos", *ORDERS)


# ---- Nacos dies


@collect(DRILLS, needs=NACOS, full_only="tests/real kills and restarts a Nacos under load in CI")
def nacos_killed(ground: Ground) -> None:
    """Nacos dies, comes back knowing nobody and pushes an empty list: no answer changes."""
    nacos, _, load = _three_orders(ground)
    with ground.under_load(load):
        nacos.kill()
        time.sleep(ground.span(10, 1))
        nacos.start()
        time.sleep(ground.span(60, 40))


@collect(DRILLS, needs=NACOS, full_only="tests/real freezes a Nacos in CI")
def nacos_stopped(ground: Ground) -> None:
    """Nacos hangs until it has given up all its clients, and goes on with empty lists: no answer changes."""
    nacos, running, load = _three_orders(ground)
    with ground.under_load(load):
        nacos.freeze()
        time.sleep(ground.span(60, 12))
        nacos.thaw()
        time.sleep(ground.span(60, 10))
    ground.found(seen_down=len(running.said("registry.disconnected")), empty_lists=len(running.said("reason=empty")))


@collect(DRILLS, needs=NACOS)
def providers_killed(ground: Ground) -> None:
    """A dead provider's instance is gone within seconds; a service's last one only after the window; no other changes."""
    window_s = ground.span(45, 5)
    nacos = ground.nacos()
    first = ground.provider(nacos, "orders", "10.0.0.1")
    last = ground.provider(nacos, "orders", "10.0.0.2")
    ground.provider(nacos, "stock", *ORDERS)
    running = _bridge(ground, nacos.address, window_s=window_s)
    until_says(running.port, "orders.nacos", {"10.0.0.1", "10.0.0.2"})
    orders = ground.load(running.port, 200).expect("orders.nacos", "10.0.0.1", "10.0.0.2", at_least=1).go()
    with ground.under_load(_expect_all(ground, running, {"stock": ORDERS})):
        first.kill()
        gone = until_says(running.port, "orders.nacos", {"10.0.0.2"}, seconds=10)
        orders.expect("orders.nacos", "10.0.0.2")
        last.kill()
        until(lambda: running.said("push.disbelieved", "reason=empty"), 10, "an empty list")
        emptied = time.monotonic()
        time.sleep(window_s - 1.0)
        ground.require(orders.end())
        while found := addresses(running.port, "orders.nacos"):
            ground.hold(time.monotonic() < emptied + window_s + 15, f"still {found}")
            time.sleep(0.05)
        lasted = time.monotonic() - emptied
    ground.hold(lasted >= window_s, f"the last instance stayed {lasted:.1f} s only")
    ground.found(gone_after_s=round(gone, 1), last_one_gone_after_s=round(lasted, 1))


# ---- a cluster


def _cluster(ground: Ground) -> Cluster:
    cluster = Cluster(ground.directory())
    ground.at_end(cluster.kill)
    return cluster.start()


@collect(DRILLS, needs=NACOS, full_only="three Nacos are 1.5 GB and a minute to start")
def cluster_killed(ground: Ground) -> None:
    """Of three Nacos one after the other dies and comes back, then all at once: no answer changes."""
    cluster = _cluster(ground)
    ground.crowd(cluster).hold({"orders": ORDERS})
    running = _bridge(ground, *cluster.addresses)
    load = _expect_all(ground, running, {"orders": ORDERS})
    with ground.under_load(load):
        for member in cluster.ports:
            cluster.kill(member)
            time.sleep(ground.span(20, 5))
            cluster.start_again(member)
            time.sleep(ground.span(20, 5))
        cluster.kill()
        time.sleep(ground.span(20, 5))
        cluster.start_again(*cluster.ports)
        time.sleep(ground.span(60, 35))
    ground.found(seen_down=len(running.said("registry.disconnected")))


@collect(DRILLS, needs=NACOS, full_only="three Nacos are 1.5 GB and a minute to start")
def cluster_restarted_under_churn(ground: Ground) -> None:
    """Three Nacos restart one by one while a service changes all the time: it has only addresses that it had, never none.

    No other service changes, and in the end it has what Nacos lists. (Nacos may list for minutes what a member that was
    killed knew of a provider that went to another one.)
    """
    cluster = _cluster(ground)
    holder = ground.crowd(cluster).hold({"orders": ORDERS})
    turns = [[f"10.9.{turn // 200}.{turn % 200 + part}" for part in range(3)] for turn in range(600)]
    changing = ground.crowd(cluster).hold({"churn": turns[0]})
    running = _bridge(ground, *cluster.addresses, settle_s=60)
    load = _expect_all(ground, running, {"orders": ORDERS})
    known = set(turns[0])
    until_says(running.port, "churn.nacos", known)
    load.expect("churn.nacos", *known, at_least=1)
    turn = 0

    def churn(seconds: float) -> None:
        nonlocal turn
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            turn += 1
            known.update(turns[turn])
            load.expect("churn.nacos", *known, at_least=1)
            changing.hold({"churn": turns[turn]})
            time.sleep(1.0)

    with ground.under_load(load):
        for member in cluster.ports:
            churn(3)
            cluster.kill(member)
            churn(ground.span(15, 3))
            cluster.start_again(member)
            churn(ground.span(10, 3))
        began = time.monotonic()
        until(lambda: set(addresses(running.port, "churn.nacos")) in cluster.listed("churn"), 100, "what Nacos lists")
        settled = time.monotonic() - began
    ghosts = set(addresses(running.port, "churn.nacos")) - set(turns[turn])
    ground.found(changes=turn, true_after_s=round(settled, 1), long_gone_and_still_listed_by_nacos=len(ghosts))
    holder.kill()


# ---- Nacos forgets


def _wipe(nacos: RealNacos) -> None:
    nacos.kill()
    until(lambda: not _is_open(nacos.port), 10, "a free port")  # the threads of a killed program end one by one
    shutil.rmtree(nacos.data)
    nacos.data.mkdir()


def _is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _brakes(ground: Ground, running: Bridge, seconds: float) -> None:
    """The brake is on after so long, and every answer stays for as long again."""
    began = time.monotonic()
    until(lambda: status(running)["keeper"]["brake_s"] is not None, seconds, "the brake")
    ground.found(brake_after_s=round(time.monotonic() - began, 1))
    time.sleep(ground.span(60, 3))
    ground.hold(running.said("brake.engaged"), "the log does not say that the brake is on")


@collect(DRILLS, needs=NACOS)
def nacos_wiped(ground: Ground) -> None:
    """Nacos comes back without its data and all providers are dead: the brake keeps every answer until the operator accepts."""
    services = _services(8, 2)
    nacos = ground.nacos()
    crowd = ground.crowd(nacos).hold(services)
    running = _bridge(ground, nacos.address, settle_s=ground.span(180, 6), window_s=ground.span(45, 5))
    with ground.under_load(_expect_all(ground, running, services)):
        crowd.kill()
        _wipe(nacos)
        nacos.start()
        _brakes(ground, running, ground.span(240, 40))
    accepted = cli(running, "cache", "accept")
    ground.found(accepted=accepted["accepted"])
    until(lambda: not any(addresses(running.port, f"{service}.nacos") for service in services), 10, "no instance")


def _switched(ground: Ground, here: dict[str, list[str]], there: dict[str, list[str]]) -> None:
    """The bridge's Nacos becomes another one, which holds other instances, and after a while its own again."""
    own, other = ground.nacos(), ground.nacos()
    way = ground.proxy(own)
    ground.crowd(own).hold(here)
    ground.crowd(other).hold(there)
    settle_s, stable_s = ground.span(180, 6), ground.span(30, 5)
    running = _bridge(ground, way.address, settle_s=settle_s, stable_s=stable_s, window_s=ground.span(45, 5))
    with ground.under_load(_expect_all(ground, running, here)):
        way.aim(other.port)
        _brakes(ground, running, ground.span(240, 40))
        way.aim(own.port)
        until(lambda: status(running)["keeper"]["brake_s"] is None, 60, "the end of the brake")


@collect(DRILLS, needs=NACOS, full_only="to the bridge it is nacos-wiped with two Nacos")
def wrong_cluster(ground: Ground) -> None:
    """The way leads to a Nacos with other services: the brake keeps every answer, and ends when the right one is back."""
    _switched(ground, _services(8, 2), {f"other-{service}": held for service, held in _services(8, 2, 7).items()})


@collect(DRILLS, needs=NACOS, full_only="what differs from nacos-wiped is in tests/unit")
def old_backup(ground: Ground) -> None:
    """Nacos comes back with half its services whole and a quarter of the others: the brake keeps every answer."""
    services = _services(12, 4)
    half = {service: held if number < 6 else held[:1] for number, (service, held) in enumerate(services.items())}
    _switched(ground, services, half)


@collect(DRILLS, needs=NACOS, full_only="most of it is waiting for the providers' SDK")
def console_drains(ground: Ground) -> None:
    """What the console drained (not enabled, weight 0) stays out when Nacos forgets that, until Nacos lists it as fit again.

    Then it is answered: whether an instance is enabled and what it weighs is Nacos's word, and believed at once. Nacos
    writes drains to its disk, so here it loses that too. What was not drained is always answered.
    """
    nacos = ground.nacos()
    ground.crowd(nacos).hold({"orders": ORDERS})
    running = _bridge(ground, nacos.address)
    until_says(running.port, "orders.nacos", set(ORDERS))
    nacos.change("orders", "10.0.0.2", 80, ephemeral=True, enabled="false")
    nacos.change("orders", "10.0.0.3", 80, ephemeral=True, weight=0)
    until_says(running.port, "orders.nacos", {"10.0.0.1"})
    load = ground.load(running.port).expect("orders.nacos", *ORDERS, at_least=1)
    with ground.under_load(load):
        _wipe(nacos)
        time.sleep(ground.span(5, 1))
        ground.hold(addresses(running.port, "orders.nacos") == ["10.0.0.1"], "a drained one is answered without Nacos")
        nacos.start()
        fit, answered = _first_seen(running, nacos, ("10.0.0.2", "10.0.0.3"), ground.span(60, 40))
    ground.hold(fit, "Nacos forgot nothing, or the providers did not come back")
    for address, at in answered.items():
        ground.hold(address in fit, f"{address} is answered, and Nacos does not list it as fit")
        ground.hold(at >= fit[address] - 0.5, f"{address} is answered {fit[address] - at:.1f} s before Nacos lists it")
    late = {address: round(answered[address] - at, 1) for address, at in fit.items() if address in answered}
    ground.found(answered_so_long_after_nacos_listed_it_s=late)


def _first_seen(
    running: Bridge, nacos: RealNacos, drained: Iterable[str], seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    """When Nacos first listed each of these as fit, and when it was first answered."""
    fit: dict[str, float] = {}
    answered: dict[str, float] = {}
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        said = addresses(running.port, "orders.nacos")
        listed = {one["ip"] for one in nacos.instances("orders") if one["enabled"] and one["weight"] > 0}
        for address in drained:
            if address in said:
                answered.setdefault(address, time.monotonic())
            if address in listed:
                fit.setdefault(address, time.monotonic())
        time.sleep(0.05)
    return fit, answered


# ---- the disk, when there is nothing else


@collect(DRILLS, needs=NACOS)
def old_cache_on_a_cloned_machine(ground: Ground) -> None:
    """A copied disk knows services at addresses of ten days ago: they are answered only while Nacos is out of reach.

    With Nacos in reach each is right within three seconds of the start, and at once when it is asked for later. When Nacos
    was out of reach at first, the old ones stay beside the new for 10 s.
    """
    count, stable_s = 50, ground.span(30, 5)
    truth = {f"svc-{number}": addresses_of(number) for number in range(count)}
    nacos = ground.nacos()
    way = ground.proxy(nacos)
    ground.crowd(nacos).hold(truth)
    for reached in (True, False):
        state = ground.directory() / "state"
        fill(state, count, confirmed_ago_s=10 * 86400.0, room=2)
        way.clear() if reached else way.refuse()
        text = f'[nacos]\nservers = ["{way.address}"]\nstable_s = {stable_s:g}\n'
        running = ground.bridge(text, directory=state)
        load = ground.load(running.port, 300)
        for number in range(count // 2):
            load.expect(f"svc-{number}.nacos", *addresses_of(number), *addresses_of(number, 2), at_least=1)
        with ground.under_load(load):
            if not reached:
                ground.hold(addresses(running.port, "svc-0.nacos"), "nothing is answered without Nacos")
                way.clear()
            until(lambda running=running: is_followed(running, count // 2), 30, "Nacos")
            wait_s = 20 if not reached else 3
            took = max(
                until_says(running.port, f"svc-{n}.nacos", set(truth[f"svc-{n}"]), seconds=wait_s) for n in range(25)
            )
            for number in range(count // 2, count) if reached else ():
                said = addresses(running.port, f"svc-{number}.nacos")
                ground.hold(set(said) == set(addresses_of(number)), f"svc-{number} is {said} when first asked for")
        ground.found(**{"true_after_s" if reached else "after_an_outage_true_after_s": round(took, 1)})
        running.close()


def _is_ready(running: Bridge) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.web_port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


@collect(DRILLS)
def nacos_and_upstreams_dead(ground: Ground) -> None:
    """With every Nacos and every upstream dead for ten minutes no node leaves readiness, and all it ever knew is answered."""
    state = ground.directory() / "state"
    fill(state, 50)
    with StubUpstream() as stub:
        stub.answer_everything("192.0.2.1")
        text = f'[nacos]\nservers = ["127.0.0.1:1"]\n[forward]\nupstreams = ["{stub.address}"]\n'
        running = ground.bridge(text, directory=state)
        load = ground.load(running.port, 300)
        for number in range(50):
            until_says(running.port, f"n{number}.example", {"192.0.2.1"})
            load.expect(f"svc-{number}.nacos", *addresses_of(number)).expect(f"n{number}.example", "192.0.2.1")
        until(lambda: _is_ready(running), 10, "readiness")
        with ground.under_load(load):
            stub.close_port()
            ends, looks = time.monotonic() + ground.span(600, 10), 0
            while time.monotonic() < ends:
                ground.hold(_is_ready(running), "it is not ready any more")
                looks += 1
                time.sleep(0.5)
    ground.found(ready=f"{looks} of {looks}")


@collect(DRILLS, needs=NACOS)
def rebooted_with_nacos_dead(ground: Ground) -> None:
    """With 10,000 services on disk and no Nacos all are answered; it comes back with 1,000 changed: true within 30 s.

    A tenth of both in short. True: the new addresses and no others; meanwhile the old ones may be beside them, and nothing
    else ever is. Services that nobody asked for have the new ones when they are asked for.
    """
    count, asked = int(ground.span(10_000, 1_000)), int(ground.span(1_000, 100))
    stable_s = ground.span(30, 5)
    state = ground.directory() / "state"
    fill(state, count + 20)
    nacos = RealNacos(ground.directory(), port=free_nacos_port())
    ground.at_end(nacos.kill)
    running = ground.bridge(f'[nacos]\nservers = ["{nacos.address}"]\nstable_s = {stable_s:g}\n', directory=state)
    for number in range(count):
        said = addresses(running.port, f"svc-{number}.nacos")
        ground.hold(set(said) == set(addresses_of(number)), f"svc-{number} is {said} with Nacos dead")
    load = ground.load(running.port, 500)
    for number in range(asked):
        load.expect(f"svc-{number}.nacos", *addresses_of(number))
    with ground.under_load(load):
        time.sleep(ground.span(30, 3))
        for number in range(asked):
            load.expect(f"svc-{number}.nacos", *addresses_of(number), *addresses_of(number, 2), at_least=2)
        nacos.start()
        truth = {f"svc-{number}": addresses_of(number, 2) for number in range(asked)}
        idle = {f"svc-{number}": addresses_of(number, 2) for number in range(count, count + 20)}
        ground.crowd(nacos).hold({**truth, **idle})
        began = time.monotonic()
        for service, held in truth.items():
            _until_among(running, service, held, began + 30)
        new = time.monotonic() - began
        for service, held in truth.items():
            until_says(running.port, f"{service}.nacos", set(held), seconds=began + 30 - time.monotonic())
        alone = time.monotonic() - began
    for service, held in idle.items():
        said = addresses(running.port, f"{service}.nacos")
        ground.hold(set(held) <= set(said), f"{service} is {said} when first asked for")
    ground.found(
        services=count, changed=asked, new_ones_answered_after_s=round(new, 1), old_ones_gone_after_s=round(alone, 1)
    )


def _until_among(running: Bridge, service: str, held: Sequence[str], ends: float) -> None:
    while not set(held) <= set(said := addresses(running.port, f"{service}.nacos")):
        if time.monotonic() > ends:
            raise BrokenError(f"{service} is still {said}")
        time.sleep(0.02)
