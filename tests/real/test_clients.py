"""Programs that look up names, on a host whose resolv.conf names the bridge: what they are told, and what they ask for it.

docs/clients.md says what follows for whoever runs such programs.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.client_host import ALL, GLIBC, GO, JAVA, MUSL, NODE, PYTHON, SOURCES, Client, ClientHost, Found, table
from fakes.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network and mount namespaces, port 53")

FAR = {"192.0.2.1", "192.0.2.2", "192.0.2.3"}
NEAR = {"10.0.0.101", "10.0.0.110", "10.0.0.3"}
SIX = {"2001:db8:1::1", "2001:db8:1::2", "2001:db8:1::3"}
MANY = {f"10.1.0.{number}" for number in range(1, 61)}
OUTSIDE = {"198.51.100.7", "198.51.100.8", "2001:db8:7::7"}
DOCUMENTED = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
UNCACHED = (f"-Djava.security.properties={SOURCES / 'uncached.security'}",)
WITH_SRV = (GLIBC, MUSL, GO, JAVA, NODE)
BY_RECORD = (JAVA, NODE)  # JNDI and c-ares, which ask for one type and know nothing of families


SERVICES = "".join(
    (
        table("far", sorted(FAR)),
        table("near", sorted(NEAR)),
        table("six", sorted(SIX)),
        table("both", ("192.0.2.1", "2001:db8:1::1")),
        table("many", sorted(MANY)),
        table("a_b", sorted(FAR)),
        table("订单", sorted(FAR)),
    )
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientHost]:
    with ClientHost(tmp_path_factory.mktemp("host"), services=SERVICES) as running:
        until(lambda: running.look_up(PYTHON, "inet", "far.nacos")[0].got, 20, "the services")
        yield running


def each(*clients: Client) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", clients, ids=lambda client: client.name)


@pytest.fixture(autouse=True)
def beginning(request: pytest.FixtureRequest, host: ClientHost) -> None:
    """The client is there, resolv.conf is as it was, nothing was heard."""
    client = request.node.callspec.params.get("client") if hasattr(request.node, "callspec") else None
    missing = client.missing() if client else []
    if missing and os.environ.get("NACOSDNS_REQUIRE_REAL") == "1":
        pytest.fail(f"the client {client.name} needs {', '.join(missing)}")
    if missing:
        pytest.skip(f"the client {client.name} needs {', '.join(missing)}")
    host.resolv_conf()
    host.heard()


def options(client: Client) -> tuple[str, ...]:
    return UNCACHED if client is JAVA else ()


def plain(found: Found) -> set[str]:
    """Addresses as they are written shortest."""
    return {
        address.replace("2001:db8:1:0:0:0:0:", "2001:db8:1::").replace(":7:0:0:0:0:7", ":7::7") for address in found.got
    }


@each(*ALL)
def test_three_instances_are_found_and_each_comes_first_in_turn(client: Client, host: ClientHost) -> None:
    found = host.look_up(client, "host", "far.nacos", times=6, options=options(client))

    assert [plain(one) for one in found] == [FAR] * 6
    assert sorted(one.got[0] for one in found) == sorted([*FAR, *FAR])


@each(*ALL)
def test_instances_of_ipv6_are_found_without_any_of_ipv4(client: Client, host: ClientHost) -> None:
    [found] = host.look_up(client, "host", "six.nacos")

    assert plain(found) == SIX


@each(*ALL)
def test_a_service_of_both_families_is_found_with_both(client: Client, host: ClientHost) -> None:
    [found] = host.look_up(client, "host", "both.nacos")

    assert plain(found) == {"192.0.2.1", "2001:db8:1::1"}
    assert {one.split()[1] for one in host.asked()} == {"A", "AAAA"}


@each(*ALL)
def test_sixty_instances_are_found_by_tcp_and_by_those_that_have_none_as_many_as_fit(
    client: Client, host: ClientHost
) -> None:
    [found] = host.look_up(client, "host", "many.nacos")
    by_tcp = any(one.startswith("tcp") for one in host.asked())

    assert plain(found) <= MANY
    if client is MUSL:
        assert len(found.got) >= 30  # by UDP alone before 1.2.4; from then on by TCP, the first 48
    else:
        assert plain(found) == MANY
        assert by_tcp is (client is not GO)  # whose EDNS makes room for 75 addresses


@each(GLIBC, NODE)
def test_a_client_that_asks_several_times_for_one_answer_still_comes_to_the_instances_in_turn(
    client: Client, host: ClientHost
) -> None:
    """S33: UDP and then TCP, which glibc does three times for so many: it hears every second or sixth turn only."""
    found = host.look_up(client, "host" if client is GLIBC else "a", "many.nacos", times=300, pause_ms=15)
    firsts = Counter(one.got[0] for one in found)

    assert len(firsts) >= 54
    assert max(firsts.values()) <= 15


@each(*BY_RECORD)
@pytest.mark.parametrize(
    ("kind", "name", "wanted"),
    [("a", "far.nacos", FAR), ("aaaa", "six.nacos", SIX), ("a", "many.nacos", MANY)],
)
def test_a_resolver_of_its_own_finds_what_it_asks_for(
    client: Client, kind: str, name: str, wanted: set[str], host: ClientHost
) -> None:
    [found] = host.look_up(client, kind, name)

    assert plain(found) == wanted
    assert {one.split()[1] for one in host.asked()} == {kind.upper()}


@each(*WITH_SRV)
def test_srv_leads_to_port_and_address_of_each_instance(client: Client, host: ClientHost) -> None:
    [found] = host.look_up(client, "srv", "far.nacos")
    reached = {}
    for record in found.got:
        _, _, port, target = record.split()
        [address] = host.look_up(client, "host", target)
        reached[address.got] = port

    assert reached == {("192.0.2.1",): "8001", ("192.0.2.2",): "8002", ("192.0.2.3",): "8003"}


@each(*WITH_SRV)
def test_sixty_srv_records_come_by_tcp(client: Client, host: ClientHost) -> None:
    [found] = host.look_up(client, "srv", "many.nacos")
    ports = {int(record.split()[2]) for record in found.got}

    assert ports <= set(range(8001, 8061))
    assert len(ports) == 60 or (client is MUSL and len(ports) >= 10)


@each(*ALL)
def test_a_name_that_nobody_has_is_no_name_at_once(client: Client, host: ClientHost) -> None:
    [found] = host.look_up(client, "host", "absent.nacos")

    assert found == Found((), "no name")
    assert sorted(host.asked()) == ["udp A absent.nacos", "udp AAAA absent.nacos"]


@each(GLIBC, MUSL, GO, PYTHON)
def test_a_family_that_a_service_lacks_is_no_address_and_nothing_is_asked_twice(
    client: Client, host: ClientHost
) -> None:
    [found] = host.look_up(client, "inet6", "far.nacos")

    assert found.got == ()
    assert found.error in {"no data", "no name"}
    assert host.asked() == ["udp AAAA far.nacos"]


@each(*ALL)
def test_a_name_of_the_world_is_forwarded(client: Client, host: ClientHost) -> None:
    [found] = host.look_up(client, "host", "www.example.com")

    assert plain(found) == OUTSIDE


@each(GLIBC, MUSL, GO, PYTHON, NODE)
def test_a_search_list_is_followed_to_the_service(client: Client, host: ClientHost) -> None:
    host.resolv_conf("nameserver 127.0.0.1\nsearch corp.nacos nacos\noptions ndots:2\n")

    [found] = host.look_up(client, "host", "far")

    assert plain(found) == FAR
    assert {one.split()[2] for one in host.asked()} == {"far.corp.nacos", "far.nacos"}


@each(GLIBC, MUSL, GO, NODE, PYTHON)
def test_nothing_is_kept_by_the_client_so_that_each_look_up_sees_the_last_change(
    client: Client, host: ClientHost
) -> None:
    host.look_up(client, "host", "far.nacos", times=2)
    host.look_up(client, "host", "absent.nacos", times=2)

    assert sorted(host.asked()) == sorted(
        f"udp {kind} {name}.nacos" for kind, name in itertools.product(("A", "AAAA"), ("far", "absent")) for _ in "12"
    )


@each(JAVA)
def test_java_keeps_answers_of_a_second_unless_it_is_told_not_to(client: Client, host: ClientHost) -> None:
    by_default = host.look_up(client, "host", "far.nacos", times=2, pause_ms=1500)
    kept = host.asked()
    told = host.look_up(client, "host", "far.nacos", times=2, options=UNCACHED)
    asked = host.asked()

    assert by_default[0] == by_default[1]
    assert len(kept) == 2
    assert told[0].got[0] != told[1].got[0]
    assert len(asked) == 4


@each(JAVA)
def test_java_keeps_that_there_is_no_such_name_unless_it_is_told_not_to(client: Client, host: ClientHost) -> None:
    host.look_up(client, "host", "absent.nacos", times=2, pause_ms=1500)
    kept = host.asked()
    host.look_up(client, "host", "absent.nacos", times=2, options=UNCACHED)

    assert (len(kept), len(host.asked())) == (2, 4)


@each(JAVA)
def test_java_takes_a_failure_for_a_name_that_there_is_not_and_keeps_that(client: Client, host: ClientHost) -> None:
    found = host.look_up(client, "host", "mute.example.com", times=2)
    asked = len(host.asked())
    host.look_up(client, "host", "mute.example.com")

    assert found == [Found((), "no name")] * 2
    assert asked == len(host.asked())


@each(JAVA)
def test_the_dns_of_jndi_keeps_nothing(client: Client, host: ClientHost) -> None:
    found = host.look_up(client, "a", "far.nacos", times=3)

    assert {one.got[0] for one in found} == FAR
    assert host.asked() == ["udp A far.nacos"] * 3


@each(GLIBC, PYTHON, NODE)
def test_the_order_of_instances_on_the_hosts_own_subnet_is_glibcs_and_not_ours(
    client: Client, host: ClientHost
) -> None:
    """S33: RFC 6724 rule 9, as docs/clients.md says: the address nearest to the host's own is always the first."""
    found = host.look_up(client, "host", "near.nacos", times=6)

    assert {one.got[0] for one in found} == {"10.0.0.101"}


@each(MUSL, GO)
def test_the_order_of_instances_on_the_hosts_own_subnet_is_ours(client: Client, host: ClientHost) -> None:
    found = host.look_up(client, "host", "near.nacos", times=6)

    assert {one.got[0] for one in found} == NEAR


@each(GLIBC)
@pytest.mark.parametrize("option", ["single-request", "single-request-reopen", "use-vc", "edns0", "trust-ad", "rotate"])
def test_options_of_resolv_conf_change_the_way_and_not_the_answer(
    client: Client, option: str, host: ClientHost
) -> None:
    host.resolv_conf(f"nameserver 127.0.0.1\noptions {option}\n")

    [found] = host.look_up(client, "host", "many.nacos")
    ways = {one.split()[0] for one in host.asked()}

    assert plain(found) == MANY
    assert ways == {"edns0": {"udp"}, "use-vc": {"tcp"}}.get(option, {"udp", "tcp"})


@each(GLIBC, MUSL, GO)
def test_a_name_whose_resolvers_are_mute_is_to_be_tried_again(client: Client, host: ClientHost) -> None:
    [found] = host.look_up(client, "inet", "mute.example.com")

    assert found == Found((), "try again")


def spellings() -> Iterator[tuple[Client, str, bool]]:
    """The table of the documentation: who finds a service by which name."""
    rows = re.findall(r"^\| `(.+)`((?: \| (?:yes|no)){5}) \|$", DOCUMENTED, re.MULTILINE)
    for name, cells in rows:
        for client, cell in zip((GLIBC, MUSL, GO, JAVA, PYTHON), cells.split(" | ")[1:], strict=True):
            yield client, name, cell == "yes"


@pytest.mark.parametrize(
    ("client", "name", "is_found"),
    list(spellings()),
    ids=lambda value: value.name if isinstance(value, Client) else str(value),
)
def test_which_spellings_a_client_can_ask_for(client: Client, name: str, is_found: bool, host: ClientHost) -> None:
    """As docs/clients.md says."""
    [found] = host.look_up(client, "host" if client is JAVA else "inet", name)

    assert set(found.got) == (FAR if is_found else set())


def test_the_table_of_spellings_is_there() -> None:
    assert len(list(spellings())) == 25
