"""Asking resolvers over real sockets, on both loops: S55 S64 S65 S67 S69 S70."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from dnslib import DNSRecord

from fakes.forwarder import Forwarder
from fakes.loop import LOOPS, run_on
from fakes.upstream import Lie, StubUpstream
from nacosdns.core.errands import ForwardSettings
from nacosdns.core.resolvers import ours
from nacosdns.edge.upstream import TCP_MESSAGES_MAX, Limits, UpstreamSockets, hindrance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    Run = Callable[[Coroutine[object, object, None]], None]

TRUTH = "192.0.2.99"


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return run_on(request.param, 30)


@pytest.fixture
def stub() -> Iterator[StubUpstream]:
    with StubUpstream() as stub:
        stub.answer_everything(TRUTH)
        yield stub


@pytest.fixture
def second() -> Iterator[StubUpstream]:
    with StubUpstream() as stub:
        stub.answer_everything(TRUTH)
        yield stub


class Sockets:
    """The edge alone: what it reported, by token."""

    def __init__(self, limits: Limits | None, spawn: Callable[..., asyncio.Task[None]], rng: Random) -> None:
        self.packets: dict[int, bytes] = {}
        self.words: dict[int, str] = {}
        self.hindered: list[int] = []
        self.denied = 0
        self.is_picky = False
        self.told = 0  # since the last call of ``settled``
        self.batches: list[int] = []
        self.edge = UpstreamSockets(
            self._received,
            self._failed,
            spawn,
            hindered=self._hindered,
            settled=self._settled,
            limits=limits,
            rng=rng,
        )
        self._token = 0

    def send(self, address: str, name: str = "ext.test", *, over_tcp: bool = False) -> int:
        self._token += 1
        packet = bytearray(DNSRecord.question(name).pack())
        packet[:2] = b"\x00\x00"
        self.edge.send(address, bytes(packet), over_tcp=over_tcp, token=self._token)
        return self._token

    async def settled(self, *tokens: int) -> None:
        while not all(token in self.packets or token in self.words for token in tokens):
            await asyncio.sleep(0.005)

    def _settled(self) -> None:
        self.batches.append(self.told)
        self.told = 0

    def _received(self, token: int, packet: bytes) -> bool:
        self.told += 1
        assert token not in self.packets
        if self.is_picky and TRUTH not in str(DNSRecord.parse(packet)):
            self.denied += 1
            return False
        self.packets[token] = packet
        return True

    def _hindered(self, token: int, reason: str) -> None:
        self.hindered.append(token)
        self._failed(token, reason)

    def _failed(self, token: int, word: str) -> None:
        self.told += 1
        assert token not in self.packets
        assert token not in self.words
        self.words[token] = word


@asynccontextmanager
async def sockets(limits: Limits | None = None, rng: Random | None = None) -> AsyncIterator[Sockets]:
    async with asyncio.TaskGroup() as group:
        made = Sockets(limits, group.create_task, rng or Random(17))
        yield made
        made.edge.close()


def test_s69_ids_and_source_ports_of_a_thousand_queries_are_spread(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        async with sockets() as edge:
            for _ in range(20):
                await edge.settled(*(edge.send(stub.address) for _ in range(50)))

    run(work())
    ids = [seen.id for seen in stub.seen]
    ports = sorted({seen.port for seen in stub.seen})

    assert len(ids) == 1000
    assert len(set(ids)) > 950
    assert max(ids) - min(ids) > 60_000
    assert len(ports) >= 8
    assert ports[-1] - ports[0] > len(ports) * 10


def test_a_socket_takes_no_more_than_its_share_and_lives_until_its_last_answer(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        async with sockets(Limits(slots=1, socket_queries_max=10)) as edge:
            stub.delay_s = 0.2
            late = [edge.send(stub.address) for _ in range(100)]
            await edge.settled(*late)
            await asyncio.sleep(0.01)

            assert all(token in edge.packets for token in late)
            assert repr(edge.edge).startswith(("<UpstreamSockets sockets=1 ", "<UpstreamSockets sockets=0 "))

    run(work())
    ports = [seen.port for seen in stub.seen]

    assert max(ports.count(port) for port in set(ports)) <= 10


def test_an_old_socket_is_replaced_and_an_idle_one_closed(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        async with sockets(Limits(slots=1, socket_age_s=0.1)) as edge:
            await edge.settled(edge.send(stub.address))
            await asyncio.sleep(0.15)
            await edge.settled(edge.send(stub.address))
            await asyncio.sleep(0.4)

            assert len({seen.port for seen in stub.seen}) == 2
            assert "sockets=0" in repr(edge.edge)

    run(work())


def test_s69_replies_with_a_wrong_id_or_from_another_port_are_strays(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.lies = (Lie.WRONG_ID, Lie.WRONG_PORT, Lie.SHORT)
        async with sockets() as edge:
            edge.is_picky = True
            tokens = [edge.send(stub.address) for _ in range(30)]
            await edge.settled(*tokens)

            assert sorted(edge.packets) == tokens
            assert edge.denied == 0
            assert edge.edge.strays == 60  # the kernel drops what comes from another port

    run(work())


def test_s69_waiting_goes_on_after_a_packet_that_is_not_the_answer(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.lies = (Lie.WRONG_QUESTION,)
        async with sockets() as edge:
            edge.is_picky = True
            tokens = [edge.send(stub.address) for _ in range(30)]
            await edge.settled(*tokens)

            assert (sorted(edge.packets), edge.denied) == (tokens, 30)

    run(work())


def test_s69_over_tcp_too_only_the_answer_counts(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.lies = tuple(lie for lie in Lie if lie is not Lie.GARBAGE)
        stub.lies_over_tcp = True
        async with sockets() as edge:
            edge.is_picky = True
            token = edge.send(stub.address, over_tcp=True)
            await edge.settled(token)

            assert (list(edge.packets), edge.words) == ([token], {})
            assert edge.edge.strays == len(stub.lies)

    run(work())


class StutteringRandom(Random):
    """Draws every number ten times in a row."""

    def __init__(self) -> None:
        super().__init__(23)
        self._left = 0
        self._last = 0

    def getrandbits(self, size: int) -> int:
        if self._left == 0:
            self._left, self._last = 10, super().getrandbits(32)
        self._left -= 1
        return self._last & ((1 << size) - 1)


def test_no_two_queries_on_one_socket_have_the_same_id(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.delay_s = 0.1
        async with sockets(Limits(slots=1), StutteringRandom()) as edge:
            tokens = [edge.send(stub.address) for _ in range(100)]
            await edge.settled(*tokens)

            assert sorted(edge.packets) == tokens

    run(work())


def test_a_closed_port_fails_everything_on_the_socket_as_refused(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.is_mute = True
        async with sockets(Limits(slots=1)) as edge:
            waiting = [edge.send(stub.address) for _ in range(5)]
            await asyncio.sleep(0.05)
            stub.close_port()
            last = [edge.send(stub.address), edge.send(stub.address)]  # the kernel tells the second of the first
            await edge.settled(*waiting, *last)

            assert set(edge.words.values()) == {"refused"}
            assert "flights=0" in repr(edge.edge)
            stub.open_port()
            stub.is_mute = False
            again = edge.send(stub.address)
            await edge.settled(again)
            assert again in edge.packets

    run(work())


def test_one_call_ends_a_batch_of_replies_or_failures(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        async with sockets(Limits(slots=1)) as edge:
            udp = [edge.send(stub.address) for _ in range(20)]
            time.sleep(0.3)  # they all wait on the socket when the loop looks at it
            await edge.settled(*udp)
            replies = list(edge.batches)
            tcp = edge.send(stub.address, over_tcp=True)
            await edge.settled(tcp)
            stub.is_mute = True
            lost = [edge.send(stub.address) for _ in range(5)]
            await asyncio.sleep(0.05)
            stub.close_port()
            lost += [edge.send(stub.address) for _ in range(2)]
            await edge.settled(*lost)

            assert (sum(replies), edge.told) == (20, 0)
            assert len(replies) < 20
            assert edge.batches[len(replies)] == 1
            assert max(edge.batches[len(replies) :]) >= 5

    run(work())


def test_a_released_token_hears_nothing_more(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.delay_s = 0.1
        async with sockets() as edge:
            udp, tcp = edge.send(stub.address), edge.send(stub.address, over_tcp=True)
            await asyncio.sleep(0.03)
            edge.edge.release(udp)
            edge.edge.release(tcp)
            edge.edge.release(12345)
            await asyncio.sleep(0.2)

            assert (edge.packets, edge.words) == ({}, {})
            assert "flights=0 tcp=0" in repr(edge.edge)

    run(work())


def test_s70_a_resolver_on_ipv6_loopback_and_another_port_is_used(run: Run) -> None:
    async def work(stub: StubUpstream) -> None:
        async with sockets() as edge:
            tokens = [edge.send(stub.address), edge.send(stub.address, over_tcp=True)]
            await edge.settled(*tokens)

            assert sorted(edge.packets) == tokens

    with StubUpstream("::1") as stub:
        stub.answer_everything(TRUTH)
        run(work(stub))


def link_local() -> str:
    """A link-local address of this host with its zone, "" when there is none."""
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    found = [line.split() for line in lines if line.startswith("fe80")]
    return f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(found[0][0]))}%{found[0][5]}" if found else ""


@pytest.mark.skipif(not link_local(), reason="this host has no link-local address")
def test_s70_the_zone_of_a_link_local_resolver_is_kept(run: Run) -> None:
    async def work(stub: StubUpstream) -> None:
        async with sockets() as edge:
            tokens = [edge.send(stub.address), edge.send(stub.address, over_tcp=True)]
            await edge.settled(*tokens)

            assert sorted(edge.packets) == tokens

    with StubUpstream(link_local()) as stub:
        stub.answer_everything(TRUTH)
        run(work(stub))


@pytest.mark.parametrize("over_tcp", [False, True])
@pytest.mark.parametrize("address", ["[fe80::1%nosuch]:53", "not an address", "255.255.255.255:53"])
def test_s70_what_cannot_be_reached_is_reported_later_and_never_raised(run: Run, address: str, over_tcp: bool) -> None:
    async def work() -> None:
        async with sockets() as edge:
            token = edge.send(address, over_tcp=over_tcp)
            immediate = dict(edge.words)
            await edge.settled(token)

            assert immediate == {}
            assert edge.words[token]

    run(work())


@pytest.mark.parametrize(("tcp", "word"), [("close", "closed"), ("mute", "timeout"), ("refuse", "refused")])
def test_a_tcp_failure_says_what_it_was(run: Run, stub: StubUpstream, tcp: str, word: str) -> None:
    async def work() -> None:
        stub.tcp = tcp
        if tcp == "refuse":
            stub.close_tcp()
        async with sockets(Limits(tcp_deadline_s=0.2)) as edge:
            token = edge.send(stub.address, over_tcp=True)
            await edge.settled(token)

            assert edge.words == {token: word}

    run(work())


def test_messages_without_end_that_are_no_answer_end_their_connection(run: Run, stub: StubUpstream) -> None:
    """Who never stops sending would else give nobody a turn, on a loop that reads at once what is there."""
    stub.streams["ext.test"] = lambda query: [b"\0\x0c\0\0" + query[2:12] + (b"\0\x0c" + bytes(12)) * 2000] * 1000
    stub.drip_s = 0.0

    async def work() -> None:
        async with sockets() as edge:
            token = edge.send(stub.address, over_tcp=True)
            await edge.settled(token)

            assert edge.words == {token: "closed"}
            assert edge.edge.strays == TCP_MESSAGES_MAX

    run(work())


def test_sockets_flights_and_connections_are_bounded(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.is_mute = True
        async with sockets(Limits(slots=2, socket_queries_max=4, sockets_max=6, tcp_max=3)) as edge:
            udp = [edge.send(stub.address) for _ in range(100)]
            tcp = [edge.send(stub.address, over_tcp=True) for _ in range(10)]
            await asyncio.sleep(0.05)

            assert {edge.words[token] for token in udp if token in edge.words} == {"6 sockets of upstreams are open"}
            assert set(edge.hindered) == set(edge.words)
            assert sum(token not in edge.words for token in udp) <= 24
            assert sum(token not in edge.words for token in tcp) == 3
            assert "sockets=6" in repr(edge.edge)

    run(work())


@pytest.mark.parametrize("over_tcp", [False, True])
def test_without_a_descriptor_left_this_host_is_to_blame_and_no_resolver(
    run: Run, stub: StubUpstream, *, over_tcp: bool
) -> None:
    async def work() -> None:
        async with sockets() as edge:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                token = edge.send(stub.address, over_tcp=over_tcp)
                await edge.settled(token)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            later = edge.send(stub.address, over_tcp=over_tcp)
            await edge.settled(later)

            assert (edge.words, edge.hindered) == ({token: "Too many open files"}, [token])
            assert later in edge.packets

    run(work())


@pytest.mark.parametrize(
    ("number", "is_ours"),
    [
        *((number, True) for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)),
        *((number, True) for number in (errno.EPERM, errno.EACCES, errno.EAGAIN)),
        *((number, False) for number in (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNRESET)),
    ],
    ids=lambda value: errno.errorcode.get(value, value) if not isinstance(value, bool) else "",
)
def test_an_error_of_this_host_is_told_from_one_of_the_resolver(number: int, *, is_ours: bool) -> None:
    assert hindrance(OSError(number, "")) == (os.strerror(number) if is_ours else "")


def test_after_close_nothing_is_open_and_nothing_is_reported(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.delay_s = 0.05
        async with sockets() as edge:
            for _ in range(20):
                edge.send(stub.address)
                edge.send(stub.address, over_tcp=True)
            edge.send("not an address")
            await asyncio.sleep(0.01)
            edge.edge.close()
            edge.send(stub.address)
            edge.send(stub.address, over_tcp=True)
            before = dict(edge.words)
            await asyncio.sleep(0.1)

            assert (edge.packets, edge.words) == ({}, before)
            assert repr(edge.edge).startswith("<UpstreamSockets sockets=0 flights=0 tcp=0")

    run(work())


# Core and edge together


def test_an_answer_comes_through_and_is_kept(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.answer("ext.test", "A", "192.0.2.1", "192.0.2.2", ttl_s=300)
        async with Forwarder(stub.address) as forwarder:
            first, second = await forwarder.ask("EXT.test"), await forwarder.ask("ext.TEST")

            assert first.values == second.values == ["192.0.2.1", "192.0.2.2"]
            assert (first.source, second.source) == ("upstream", "cache")

    run(work())


def test_s69_a_lying_resolver_is_heard_only_when_it_tells_the_truth(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.lies = tuple(Lie)
        async with Forwarder(stub.address) as forwarder:
            replies = await asyncio.gather(*(forwarder.ask(f"n{number}.test") for number in range(100)))

            assert {tuple(reply.values) for reply in replies} == {(TRUTH,)}
            assert len(forwarder.forwarding.outside) == 100
            stub.lies = ()
            assert (await forwarder.ask("evil.test")).values == [TRUTH]
            assert forwarder.forwarding.counts.upstream_spoofed >= 400

    run(work())


@pytest.mark.parametrize("how", ["mute", "closed", "SERVFAIL", "REFUSED"])
def test_s67_the_second_resolver_answers_in_the_same_query(
    run: Run, stub: StubUpstream, second: StubUpstream, how: str
) -> None:
    async def work() -> None:
        if how == "closed":
            stub.close_port()
        stub.is_mute = how == "mute"
        stub.always = how if how.isupper() else ""
        async with Forwarder(stub.address, second.address) as forwarder:
            replies = [await forwarder.ask(f"n{number}.test") for number in range(8)]

            assert {tuple(reply.values) for reply in replies} == {(TRUTH,)}
            assert replies[0].waited_s <= 1.5
            assert max(reply.waited_s for reply in replies[4:]) <= 0.45

    run(work())


def test_s67_the_only_resolver_gone_and_back_works_within_5_s(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        async with Forwarder(stub.address) as forwarder:
            await forwarder.ask("before.test")
            stub.close_port()
            down = [await forwarder.ask(f"d{number}.test") for number in range(10)]
            kept = await forwarder.ask("before.test")
            stub.open_port()
            back_at = asyncio.get_running_loop().time()
            while (await forwarder.ask("after.test")).rcode != "NOERROR":
                await asyncio.sleep(0.1)

            assert {reply.rcode for reply in down} == {"SERVFAIL"}
            assert kept.values == [TRUTH]
            assert asyncio.get_running_loop().time() - back_at <= 5.5

    run(work())


def test_s55_truncated_replies_are_asked_again_over_tcp(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.answer("big.test", "A", *(f"192.0.2.{number}" for number in range(1, 101)))
        stub.truncates = True
        async with Forwarder(stub.address) as forwarder:
            small = await forwarder.ask("big.test", payload=1232)
            whole = await forwarder.ask("big.test", tcp=1)

            assert (small.is_truncated, len(whole.values)) == (True, 100)
            assert [stub.count("big.test", transport=transport) for transport in ("udp", "tcp")] == [1, 1]

    run(work())


def test_s55_without_tcp_the_client_sees_tc_and_nothing_is_kept(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        stub.truncates = True
        stub.close_tcp()
        async with Forwarder(stub.address) as forwarder:
            reply = await forwarder.ask("big.test")

            assert (reply.is_truncated, reply.rcode) == (True, "NOERROR")
            assert len(forwarder.forwarding.outside) == 0

    run(work())


def test_s64_0x20_is_invisible_to_clients(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        async with Forwarder(stub.address, settings=ForwardSettings(mixed_case=True)) as forwarder:
            replies = [await forwarder.ask(f"SomeName{number}.test") for number in range(10)]

            assert all(reply.packet[13:21] == b"SomeName" for reply in replies)
            assert stub.count(transport="tcp") == 0

    run(work())


def test_s65_with_only_ourselves_to_ask_the_answer_is_servfail_at_once(run: Run) -> None:
    async def work() -> None:
        async with Forwarder("127.0.0.1:53", own=ours(["127.0.0.1:53"], ["127.0.0.1"])) as forwarder:
            reply = await forwarder.ask("ext.test")

            assert (reply.rcode, "ourselves" in reply.outcome.why) == ("SERVFAIL", True)

    run(work())


def test_many_questions_at_once_are_all_answered(run: Run, stub: StubUpstream) -> None:
    async def work() -> None:
        async with Forwarder(stub.address) as forwarder:
            for _ in range(5):
                names = [f"n{number}.test" for number in range(200)]
                replies = await asyncio.gather(*(forwarder.ask(name) for name in names))

                assert {tuple(reply.values) for reply in replies} == {(TRUTH,)}

    run(work())
