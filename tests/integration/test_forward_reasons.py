"""Why outside names, or names that are not known yet, are not answered: what `status`, `doctor`, `ask` and the log say of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fakes.asking import addresses, ask
from fakes.nacos_server import FakeNacos
from fakes.running import TWO_ORDERS, Bridge, free_port, until
from fakes.upstream import StubUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRUTH = "192.0.2.99"


@pytest.fixture
def stub() -> Iterator[StubUpstream]:
    with StubUpstream() as running:
        running.answer_everything(TRUTH)
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts a bridge with these upstreams."""
    with contextlib.ExitStack() as ends:

        def begin(*upstreams: str, text: str = TWO_ORDERS, **how: Any) -> Bridge:
            listed = ", ".join(f'"{address}"' for address in upstreams)
            running = Bridge(
                tmp_path, text=text.replace("upstreams = []", f"upstreams = [{listed}]"), modules={}, **how
            )
            ends.callback(running.close)
            return running.up()

        yield begin


def said(running: Bridge, *words: str) -> Any:
    command = [sys.executable, "-m", "nacosdns.cli", *words, "--json", "-c", str(running.file)]
    return json.loads(subprocess.run(command, capture_output=True, check=False, timeout=30).stdout)


def status(running: Bridge) -> Any:
    return said(running, "status")


def doctor(running: Bridge) -> dict[str, dict[str, str]]:
    return {row["id"]: row for row in said(running, "doctor")["findings"]}


def why(running: Bridge, name: str) -> str:
    return "; ".join(said(running, "ask", name)["why"])


def child(running: Bridge, role: str) -> Any:
    children = status(running)["supervisor"]["children"]
    return next(one for one in children if one["role"] == role and (role != "front" or one["sockets"]))


def front_of(running: Bridge) -> Any:
    return status(running)["fronts"][str(child(running, "front")["slot"])]


def ask_some(running: Bridge, count: int = 4) -> None:
    for number in range(count):
        ask(running.port, f"name{number}.test", seconds=5)


def test_used_up_descriptors_are_named_everywhere_and_no_upstream_is_blamed(start: Any, stub: StubUpstream) -> None:
    running: Bridge = start(stub.address)
    until(lambda: addresses(running.port, "first.test") == [TRUTH])
    front = child(running, "front")
    pid, name = front["pid"], f"front {front['slot']}"
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (12, before[1]))
    with socket.create_connection(("127.0.0.1", running.port), 2):
        ask_some(running, 40)
        running.wait_for("front.hindered", 'reason="Too many open files"')
        problems, found, told = status(running)["problems"], doctor(running), front_of(running)
        upstreams = told["upstreams"]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        running.wait_for("front.unhindered")

    assert f"NO FILES: {name} has used all 12 files" in problems
    assert told["files"]["used"] > told["files"]["limit"] == 12
    assert found["limits.files"]["severity"] == "error"
    assert f"{name} has used all 12 files" in found["limits.files"]["seen"]
    assert [(one["health"], one["last_error"]) for one in upstreams] == [("up", "")]
    assert found["forward.upstreams"]["severity"] == "ok"
    assert len(running.said("front.hindered")) == 1
    assert not running.said("unreachable")
    assert addresses(running.port, "afterwards.test") == [TRUTH]
    assert status(running)["problems"] == []


def test_an_upstream_with_nothing_on_its_port_is_not_said_to_refuse(start: Any) -> None:
    running: Bridge = start(f"127.0.0.1:{free_port()}")

    def told() -> tuple[str, str]:
        ask_some(running, 2)
        (upstream,) = front_of(running)["upstreams"]
        return upstream["health"], upstream["last_error"]

    until(lambda: told() == ("down", "nothing listens there"))
    running.wait_for("upstream.health", 'last_error="nothing listens there"')

    assert "down, nothing listens there" in why(running, "other.test")


def test_ask_says_that_no_upstream_is_configured(start: Any) -> None:
    assert why(start(), "name.test") == "no upstream: forward.upstreams is empty"


def test_a_keeper_that_hangs_is_blamed_and_not_nacos(start: Any) -> None:
    instance = {"ip": "10.0.0.7", "port": 80, "weight": 1.0, "healthy": True, "enabled": True, "ephemeral": True}
    nacos = FakeNacos(services={("public", "DEFAULT_GROUP", "wares"): [instance]})

    async def work() -> tuple[str, str, str]:
        async with nacos.running():
            text = TWO_ORDERS.replace("servers = []", f'servers = ["{nacos.address}"]')
            running: Bridge = await asyncio.to_thread(start, text=text)
            return await asyncio.to_thread(look, running)

    def look(running: Bridge) -> tuple[str, str, str]:
        until(lambda: addresses(running.port, "wares.nacos") == ["10.0.0.7"])
        until(lambda: why(running, "wares.nacos") == "")
        keeper = child(running, "keeper")["pid"]
        os.kill(keeper, signal.SIGSTOP)
        try:
            told = why(running, "unknown9.nacos"), why(running, "wares.nacos"), why(running, "orders.nacos")
        finally:
            os.kill(keeper, signal.SIGCONT)
        return told

    unknown, known, static = asyncio.run(work())

    assert unknown.startswith("the keeper does not answer (see `nacosdns status`), and only it can look up")
    assert known.startswith("the keeper does not answer (see `nacosdns status`): this is what Nacos said last")
    assert "nothing is followed now, and its last word came" in known
    assert static == ""


@pytest.mark.parametrize(("rcode", "todo"), [("SERVFAIL", "log"), ("REFUSED", "access list")])
def test_upstreams_that_answer_with_failures_only_are_told_with_what_they_said(
    start: Any, stub: StubUpstream, rcode: str, todo: str
) -> None:
    stub.always = rcode
    running: Bridge = start(stub.address)
    ask_some(running)
    reason = why(running, "other.test")
    problems, found = status(running)["problems"], doctor(running)["forward.upstreams"]
    stub.always = ""
    until(lambda: status(running)["problems"] == [] or not ask(running.port, "good.test", seconds=5))

    assert f"{stub.address} said {rcode}" in reason
    assert problems == [f"UPSTREAMS FAIL: {stub.address} said {rcode}"]
    assert (found["severity"], todo in found["todo"]) == ("error", True)


def test_a_site_without_the_internet_has_nothing_to_complain_of(start: Any, stub: StubUpstream) -> None:
    stub.rcode("", "NS", "SERVFAIL")
    running: Bridge = start(stub.address)
    ask_some(running)

    assert status(running)["problems"] == []
    assert doctor(running)["forward.upstreams"]["severity"] == "ok"


def test_a_denial_without_a_soa_record_is_not_called_stale(start: Any, stub: StubUpstream) -> None:
    def deny(_: str, query: bytes) -> Iterator[bytes]:
        yield query[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + query[12 : query.index(b"\0\1\0\1", 12) + 4]

    stub.says["gone.test"] = deny
    running: Bridge = start(stub.address)
    reasons = [why(running, "gone.test") for _ in range(2)]

    assert all("without a SOA record" in reason for reason in reasons), reasons
    assert not any("stale" in reason for reason in reasons)


def test_a_stale_answer_says_what_the_upstream_did_since(start: Any, stub: StubUpstream) -> None:
    stub.answer("short.test", "A", TRUTH, ttl_s=1)
    running: Bridge = start(stub.address)
    addresses(running.port, "short.test")
    stub.always = "SERVFAIL"

    until(lambda: "stale: its time ended" in why(running, "short.test"))
    assert f"{stub.address} said SERVFAIL" in why(running, "short.test")


def test_when_every_upstream_is_ourselves_the_head_of_status_says_so(start: Any) -> None:
    port = free_port()
    running: Bridge = start(f"127.0.0.1:{port}", port=port)

    assert status(running)["problems"] == [f"NO UPSTREAM: 127.0.0.1:{port}: that is ourselves"]


def test_a_client_that_may_not_ask_is_counted_and_named(start: Any) -> None:
    port = free_port()
    running: Bridge = start(text=f'allow = ["10.0.0.0/8"]\n{TWO_ORDERS}', port=port, listen=f'"0.0.0.0:{port}"')
    reply = ask(running.port, "orders.nacos", seconds=5)

    assert reply.rcode() == 5
    until(lambda: front_of(running)["refused_last_s"] is not None, what="the time of the refusal")
    assert (front_of(running)["refused_clients"], front_of(running)["refused_last"]) == (1, "127.0.0.1")


def test_our_own_canary_is_no_client_that_may_not_ask(start: Any) -> None:
    port = free_port()
    running: Bridge = start(text=f'allow = ["10.0.0.0/8"]\n{TWO_ORDERS}', port=port, listen=f'"0.0.0.0:{port}"')
    until(lambda: status(running)["supervisor"]["canary_age_s"] is not None, what="a canary")

    assert front_of(running)["refused_clients"] == 0


def test_names_that_fail_beside_others_are_said_at_the_head_of_status(start: Any) -> None:
    with StubUpstream() as stub:
        stub.answer("good.example", "A", "192.0.2.1", ttl_s=60)
        for number in range(12):
            stub.rcode(f"bad{number}.example", "A", "SERVFAIL")
        running: Bridge = start(stub.address)
        ask(running.port, "good.example", seconds=5)
        rcodes = {ask(running.port, f"bad{number}.example", seconds=5).rcode() for number in range(12)}
        (said,) = status(running)["problems"]

    assert rcodes == {2}
    assert said.startswith("NAMES FAIL: 12 outside names got no answer within 30 s, the last one bad11.example.")
    assert f"{stub.address} said SERVFAIL" in said
