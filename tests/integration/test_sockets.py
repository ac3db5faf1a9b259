from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

import pytest

from fakes.running import free_port
from nacosdns.edge import host
from nacosdns.edge.sockets import Endpoint, Listeners, check_wanted, endpoints, listening, meant
from nacosdns.errors import StartError


class Here(NamedTuple):
    interface: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address


PRESENT = [
    Here("lo", ipaddress.ip_address("127.0.0.1")),
    Here("eth0", ipaddress.ip_address("10.0.0.7")),
    Here("eth0", ipaddress.ip_address("10.0.0.8")),
    Here("eth0", ipaddress.ip_address("2001:db8::7")),
    Here("eth0", ipaddress.ip_address("fe80::1")),
]


@pytest.fixture
def listeners():
    made = Listeners()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("listen", "found", "missing"),
    [
        (["127.0.0.1:53"], ["127.0.0.1:53"], []),
        (["[::1]:53", "0.0.0.0:5353"], ["[::1]:53", "0.0.0.0:5353"], []),
        (["eth0:53"], ["10.0.0.7:53", "10.0.0.8:53", "[2001:db8::7]:53"], []),
        (["eth0:53", "10.0.0.8:53"], ["10.0.0.7:53", "10.0.0.8:53", "[2001:db8::7]:53"], []),
        (["docker0:53", "127.0.0.1:53"], ["127.0.0.1:53"], ["docker0:53"]),
    ],
)
def test_an_interface_stands_for_its_addresses(listen, found, missing):
    wanted, absent = endpoints(listen, PRESENT)

    assert [str(endpoint) for endpoint in wanted] == found
    assert absent == missing


def test_of_a_host_with_many_interfaces_only_those_that_are_named_are_remembered():
    crowd = [Here(f"veth{number}", ipaddress.ip_address(f"fe80::{number:x}")) for number in range(1, 100)]

    assert [str(item.address) for item in meant(["eth0:53", "127.0.0.1:53"], [*PRESENT, *crowd])] == [
        "10.0.0.7",
        "10.0.0.8",
        "2001:db8::7",
        "fe80::1",
    ]
    assert meant(["127.0.0.1:53", "[::]:53"], crowd) == ()


def test_each_front_slot_has_a_udp_and_a_tcp_socket_of_its_own(listeners):
    port = free_port()

    assert listeners.want([f"127.0.0.1:{port}"], 2, PRESENT)
    sets = listeners.sets()
    assert [one.slot for one in sets] == [0, 1]
    assert len({fd for one in sets for fd, _ in one.udp + one.tcp}) == 4
    assert {address for one in sets for _, address in one.udp + one.tcp} == {f"127.0.0.1:{port}"}


def test_wanting_the_same_again_changes_nothing(listeners):
    listen = [f"127.0.0.1:{free_port()}"]
    listeners.want(listen, 1, PRESENT)
    before = listeners.sets()

    assert not listeners.want(listen, 1, PRESENT)
    assert listeners.sets() == before


def test_another_front_slot_keeps_the_sockets_that_are_there(listeners):
    listen = [f"127.0.0.1:{free_port()}"]
    listeners.want(listen, 1, PRESENT)
    before = listeners.sets()

    assert listeners.want(listen, 2, PRESENT)
    assert listeners.sets()[0] == before[0]


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_taken_port_leaves_everything_as_it_was(listeners, kind):
    listen = [f"127.0.0.1:{free_port()}"]
    listeners.want(listen, 1, PRESENT)
    before = listeners.sets()
    with socket.socket(socket.AF_INET, kind) as holder:
        holder.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            holder.listen()
        with pytest.raises(StartError, match="is taken by"):
            listeners.want([*listen, f"127.0.0.1:{holder.getsockname()[1]}"], 1, PRESENT)

    assert listeners.sets() == before


def test_what_is_no_longer_wanted_is_open_until_it_is_closed(listeners):
    old, new = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    listeners.want([old], 1, PRESENT)
    listeners.want([new], 1, PRESENT)

    assert len(listeners.pairs(0)) == 2
    listeners.close_unwanted()
    assert [pair.udp.getsockname()[1] for pair in listeners.pairs(0)] == [int(new.rpartition(":")[2])]


def test_an_address_that_the_host_lacks_is_bound_ahead_of_time(listeners):
    listeners.want([f"198.51.100.77:{free_port()}", f"[2001:db8::77]:{free_port()}"], 1, PRESENT)

    assert {endpoint.host for endpoint in listeners.late} == {"198.51.100.77", "2001:db8::77"}
    assert len(listeners.pairs(0)) == 2


def test_an_address_that_appears_is_told_once_and_one_that_is_not_wanted_any_more_never(listeners):
    first, second = f"198.51.100.77:{free_port()}", f"198.51.100.78:{free_port()}"
    listeners.want([first, second], 1, PRESENT)
    listeners.want([first], 1, PRESENT)
    late = {endpoint.host for endpoint in listeners.late}
    came = [{endpoint.host for endpoint in listeners.look(["198.51.100.77", "198.51.100.78"])[0]} for _ in range(2)]

    assert late == {"198.51.100.77"}
    assert came == [{"198.51.100.77"}, set()]


def test_an_address_that_goes_is_told_once_and_waited_for(listeners):
    listeners.want([f"198.51.100.77:{free_port()}", f"127.0.0.1:{free_port()}", f"[::]:{free_port()}"], 1, PRESENT)
    listeners.look(["198.51.100.77"])
    went = [{endpoint.host for endpoint in listeners.look([])[1]} for _ in range(2)]
    late = {endpoint.host for endpoint in listeners.late}
    came, _ = listeners.look(["198.51.100.77"])

    assert went == [{"198.51.100.77"}, set()]
    assert late == {"198.51.100.77"}
    assert {endpoint.host for endpoint in came} == {"198.51.100.77"}


def test_a_late_address_that_is_wanted_again_before_it_was_closed_is_still_late(listeners):
    late, good = f"198.51.100.77:{free_port()}", f"127.0.0.1:{free_port()}"
    for listen in ([late], [good], [late]):
        listeners.want(listen, 1, PRESENT)

    assert {str(endpoint) for endpoint in listeners.late} == {late}


def test_a_refused_set_of_addresses_leaves_nothing_to_wait_for(listeners):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        with pytest.raises(StartError, match="is taken by"):
            listeners.want([f"198.51.100.77:{free_port()}", f"127.0.0.1:{holder.getsockname()[1]}"], 1, PRESENT)
    listeners.want([f"127.0.0.1:{free_port()}"], 1, PRESENT)

    assert listeners.late == set()
    assert listeners.look(["198.51.100.77"]) == (set(), set())


@pytest.mark.parametrize(
    ("narrow", "wide", "apart"),
    [
        ("127.0.0.1", "0.0.0.0", False),
        ("[::1]", "[::]", False),
        ("127.0.0.1", "[::]", True),
        ("[::1]", "0.0.0.0", True),
    ],
)
def test_addresses_that_overlap_are_refused_in_both_orders_and_blame_nobody(listeners, narrow, wide, apart):
    port = free_port()
    for both in ([narrow, wide], [wide, narrow]):
        listen = [f"{one}:{port}" for one in both]
        if apart:
            listeners.want(listen, 1, PRESENT)
            assert [str(endpoint) for endpoint in listeners.wanted] == listen
            continue
        with pytest.raises(StartError, match=f"overlap.*{port}"):
            listeners.want(listen, 1, PRESENT)
        with pytest.raises(StartError, match=f"overlap.*{port}"):
            check_wanted(listen, 1, PRESENT, ())


def test_a_wildcard_hears_the_address_that_was_asked_and_all_hear_the_time(listeners):
    port = free_port()
    listeners.want([f"0.0.0.0:{port}"], 1, PRESENT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("127.0.0.9", port))
        udp = listeners.pairs(0)[0].udp
        udp.setblocking(True)
        udp.settimeout(5)
        _, ancillary, _, _ = udp.recvmsg(100, 256)
    kinds = {(level, kind): data for level, kind, data in ancillary}

    assert kinds[socket.IPPROTO_IP, 8][8:12] == socket.inet_aton("127.0.0.9")
    assert (socket.SOL_SOCKET, 35) in kinds


def test_receive_buffers_are_as_large_as_the_host_allows(listeners):
    listeners.want([f"127.0.0.1:{free_port()}"], 1, PRESENT)

    assert listeners.receive_buffer_bytes() >= 212_992


def test_a_wildcard_is_reached_on_loopback_by_the_host_itself():
    assert Endpoint("0.0.0.0", 53).local == Endpoint("127.0.0.1", 53)
    assert Endpoint("::", 53).local == Endpoint("::1", 53)
    assert Endpoint("10.0.0.1", 53).local == Endpoint("10.0.0.1", 53)


def test_a_port_for_the_web_is_checked_without_being_kept():
    port = free_port()
    listening(Endpoint("127.0.0.1", port), "web.listen").close()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(StartError, match=r"set web\.listen"):
        listening(Endpoint("127.0.0.1", port), "web.listen")


def test_the_host_knows_its_own_addresses():
    found = {(item.interface, str(item.address)): str(item.network) for item in host.addresses()}

    assert found["lo", "127.0.0.1"] == "127.0.0.0/8"
