"""What names mean and what services are called (docs/names.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nacosdns.core.dnsname import labels_of, name_text, name_to_wire, text_name
from nacosdns.core.dnsrecord import pack_address
from nacosdns.core.model import ServiceKey, Zone
from nacosdns.core.naming import (
    AddressName,
    Apex,
    Marker,
    Names,
    Nothing,
    Outside,
    Prefix,
    ServiceName,
    address_name,
    folded_key,
)
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from nacosdns.core.naming import Target

NACOS = Zone(name=b"\5nacos\0")
NAMES = Names([NACOS], namespaces={"prod": "33ea21bc"}, groups={"pay": "com.example.PAY"})


def meaning(name: str, names: Names = NAMES) -> Target:
    return names.resolve(labels_of(text_name(name)))


def service(name: str, names: Names = NAMES) -> ServiceName:
    target = meaning(name, names)
    assert isinstance(target, ServiceName), target
    return target


def told(target: Target) -> str:
    """A target in the words of docs/names.md."""
    match target:
        case Outside():
            return "forwarded"
        case Apex():
            return "the zone"
        case Marker():
            return "nothing itself, but names stand below it"
        case AddressName():
            return f"address `{target.address}`"
        case Nothing():
            return "no such name"
        case ServiceName():
            keys = [candidate.spellings[0] for candidate in target.candidates]
            text = "; else ".join(f"service `{k.service}`, group `{k.group}`, namespace `{k.namespace}`" for k in keys)
            text += f", cluster `{target.cluster}`" if target.cluster else ""
            text += f", SRV for port `{target.port}`" if target.prefix is Prefix.SRV else ""
            return text + (", gRPC service config" if target.prefix is Prefix.GRPC_CONFIG else "")


def documented() -> list[tuple[str, str]]:
    page = (Path(__file__).parents[2] / "docs" / "names.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| name \| reads as \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [(row[1], row[2]) for table in tables for row in re.finditer(r"\| `(.*?)` \| (.*) \|\n", table)]


@pytest.mark.parametrize(("name", "reads_as"), documented())
def test_every_example_of_the_page_on_names_is_true(name: str, reads_as: str) -> None:
    assert told(meaning(name)) == reads_as


def test_the_page_on_names_has_its_examples() -> None:
    assert len(documented()) > 30


# Letters


@pytest.mark.parametrize("asked", ["order-service", "ORDER-service", "Order-Service"])
def test_s01_names_are_the_same_whatever_their_case(asked: str) -> None:
    candidate = service(f"{asked}.NaCoS").candidates[0]

    assert candidate.folded == folded_key("public", "DEFAULT_GROUP", "Order-Service")
    assert candidate.asked == asked
    assert [key.service for key in candidate.spellings] == list(dict.fromkeys(("order-service", asked)))


def test_s03_dots_and_underscores_lead_to_three_different_services() -> None:
    dotted, grouped, under = service("a.b.c.nacos"), service("a.b.group.nacos"), service("redis-server_test.nacos")

    assert dotted.candidates[0].folded == ("public", "default_group", "a.b.c")
    assert [candidate.folded for candidate in grouped.candidates] == [("public", "b", "a")]
    assert [candidate.folded for candidate in under.candidates] == [("public", "default_group", "redis-server_test")]


@pytest.mark.parametrize("label", ["订单服务".encode(), b"xn--zfr3pq20ciq8a", b"XN--ZFR3PQ20CIQ8A"])
def test_s05_raw_utf8_and_punycode_find_the_same_service(label: bytes) -> None:
    target = NAMES.resolve((label, b"nacos"))

    assert isinstance(target, ServiceName)
    assert [key.service for key in target.candidates[0].spellings] == ["订单服务"]


@given(st.lists(st.binary(min_size=1, max_size=63), max_size=3))
def test_s06_any_labels_have_a_meaning(labels: list[bytes]) -> None:
    for tail in ((b"nacos",), (b"addr", b"nacos"), (b"GROUP", b"nacos"), (b"prod", b"ns", b"nacos"), ()):
        target = NAMES.resolve((*labels, *tail))

        if isinstance(target, ServiceName):
            assert sum(len(candidate.spellings) for candidate in target.candidates) <= 3


# Services


def test_unknown_names_ask_for_lower_case_then_as_asked_then_the_group() -> None:
    plain, alias = service("Order.Pay.nacos").candidates

    assert [str(key) for key in plain.spellings] == ["public/DEFAULT_GROUP/order.pay", "public/DEFAULT_GROUP/Order.Pay"]
    assert [str(key) for key in alias.spellings] == ["public/com.example.PAY/order"]


def test_a_lower_case_name_leaves_two_questions_for_the_group() -> None:
    plain, alias = service("order.B.nacos").candidates

    assert [str(key) for key in (*plain.spellings, *alias.spellings)] == [
        "public/DEFAULT_GROUP/order.b",
        "public/DEFAULT_GROUP/order.B",
        "public/B/order",
    ]


@pytest.mark.parametrize("asked", ["pay_group", "Pay_Group", "PAY_GROUP"])
def test_a_known_group_is_asked_for_in_its_own_spelling(asked: str) -> None:
    names = Names([NACOS], known_groups=["PAY_GROUP"])

    assert service(f"orders.{asked}.group.nacos", names).candidates[0].spellings[0].group == "PAY_GROUP"


def test_of_several_spellings_of_a_group_the_one_asked_wins() -> None:
    names = Names([NACOS])
    names.learn_group("pay")
    names.learn_group("Pay")

    assert service("orders.pay.group.nacos", names).candidates[0].spellings[0].group == "pay"
    assert service("orders.PAY.group.nacos", names).candidates[0].spellings[0].group == "Pay"


def test_s06_nacos_own_spelling_is_an_alias_of_the_group() -> None:
    assert service("DEFAULT_GROUP@@order.nacos").candidates == service("order.DEFAULT_GROUP.group.nacos").candidates


@pytest.mark.parametrize("name", ["@@order.nacos", "order@@.nacos", "a@@b.pay.group.nacos"])
def test_s06_a_joint_with_one_side_or_beside_a_group_is_part_of_the_service(name: str) -> None:
    assert "@@" in service(name).candidates[0].folded[2]


@pytest.mark.parametrize(
    ("name", "namespace"),
    [("s.public.ns.nacos", "public"), ("s.PROD.ns.nacos", "33ea21bc"), ("s.33EA21BC.NS.nacos", "33ea21bc")],
)
def test_s09_namespaces_go_by_id_or_alias(name: str, namespace: str) -> None:
    assert service(name).namespace == namespace


def test_s09_an_empty_namespace_is_public() -> None:
    names = Names([NACOS], namespaces={"main": ""})

    assert service("s.main.ns.nacos", names).namespace == "public"


@pytest.mark.parametrize("name", ["s.nope.ns.nacos", "nope.ns.nacos", "group.nope.ns.nacos"])
def test_s09_a_namespace_that_is_not_configured_does_not_exist(name: str) -> None:
    assert meaning(name) == Nothing(NACOS, "namespace")


def test_any_cluster_means_all_clusters() -> None:
    assert (service("s._any.cluster.nacos").cluster, service("s.BJ.cluster.nacos").cluster) == ("", "bj")


@pytest.mark.parametrize(
    "name",
    [
        "_grpclb._tcp.s.nacos",
        "_http._udp.s.nacos",
        "_udp.s.nacos",
        "_tcp.nacos",
        "_http._tcp.nacos",
        "_http._tcp.group.nacos",
        "_grpc_config.nacos",
        "_x._http._tcp.s.nacos",
        "x._tcp.s.nacos",
        "_._tcp.s.nacos",
        "_a._tcp._b._tcp.s.nacos",
    ],
)
def test_s24_prefixes_that_mean_nothing_never_become_a_look_up(name: str) -> None:
    assert meaning(name) == Nothing(NACOS, "prefix")


@pytest.mark.parametrize(
    ("name", "prefix", "port"),
    [
        ("_GRPC_config.s.nacos", Prefix.GRPC_CONFIG, ""),
        ("_Http._TCP.s.nacos", Prefix.SRV, "http"),
        ("_80._tcp.s.nacos", Prefix.SRV, "80"),
        ("_tcp.s.nacos", Prefix.PROTOCOL, ""),
        ("_s.s.nacos", Prefix.NONE, ""),
    ],
)
def test_s24_a_prefix_is_no_part_of_the_service(name: str, prefix: Prefix, port: str) -> None:
    target = service(name)

    assert (target.prefix, target.port) == (prefix, port)
    assert prefix is Prefix.NONE or [candidate.folded[2] for candidate in target.candidates] == ["s"]


def test_s04_a_label_over_63_bytes_is_nothing_and_one_of_63_is_a_name() -> None:
    assert NAMES.resolve((b"y" * 64, b"nacos")) == Nothing(NACOS, "length")
    assert service(f"{'y' * 63}.x.nacos").candidates[0].folded[2] == f"{'y' * 63}.x"


@pytest.mark.parametrize("name", ["a.b.public.ns.nacos", "a.b.c1.cluster.nacos", "a.b.g.group.nacos"])
def test_with_a_marker_a_dot_belongs_to_the_service(name: str) -> None:
    assert [candidate.folded[2] for candidate in service(name).candidates] == ["a.b"]


# Addresses


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.1", "10-0-0-1.addr.nacos."),
        ("255.255.255.255", "255-255-255-255.addr.nacos."),
        ("2001:db8::1", "2001-db8--1.addr.nacos."),
        ("2001:DB8:0:0::1", "2001-db8--1.addr.nacos."),
        ("::1", "0--1.addr.nacos."),
        ("2001:db8::", "2001-db8--0.addr.nacos."),
        ("::", "0--0.addr.nacos."),
        ("::ffff:1.2.3.4", "0--ffff-102-304.addr.nacos."),
        ("fe80::1%eth0", "fe80--1.addr.nacos."),
    ],
)
def test_s17_an_address_has_a_name_that_leads_back_to_it(address: str, name: str) -> None:
    wire = address_name(address, NACOS.name)
    target = NAMES.resolve(labels_of(wire))

    assert name_text(wire) == name
    assert isinstance(target, AddressName)
    assert pack_address(target.address) == pack_address(address)


@given(st.ip_addresses())
def test_s17_every_address_has_a_name_without_hyphens_at_its_ends(address: object) -> None:
    wire = address_name(str(address), NACOS.name)
    target = NAMES.resolve(labels_of(wire))

    assert isinstance(target, AddressName)
    assert pack_address(target.address) == pack_address(str(address))
    assert b"-" not in {wire[1:2], wire[wire[0] : wire[0] + 1]}


@pytest.mark.parametrize(
    "label", ["10-0-0", "10-0-0-256", "010-0-0-1", r"10\.0\.0\.1", "1-2-3-4-5", "g--1", "-", "a--b--c", "www"]
)
def test_what_is_no_address_under_addr_is_a_service(label: str) -> None:
    assert service(f"{label}.addr.nacos").candidates[0].folded[2].endswith(".addr")


def test_a_host_name_has_no_address_name() -> None:
    with pytest.raises(WireError, match="address"):
        address_name("db", NACOS.name)


# Zones


def test_the_longest_zone_takes_a_name_and_nothing_falls_through() -> None:
    inner = Zone(name=b"\4prod\5nacos\0", namespace="33ea21bc", group="PAY")
    names = Names([NACOS, inner])

    assert service("s.prod.nacos", names).zone == inner
    assert service("s.prod.nacos", names).candidates[0].folded == ("33ea21bc", "pay", "s")
    assert meaning("prod.nacos", names) == Apex(inner)
    assert service("s.xprod.nacos", names).zone == NACOS
    assert meaning("nacos.test", names) == Outside()


def test_s05_a_zone_may_be_written_in_any_letters() -> None:
    zone = Zone(name=text_name("公司.example."))
    names = Names([zone])

    assert service("s.公司.EXAMPLE", names).zone == zone
    assert service("s.xn--55qx5d.example", names).zone == zone


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"zones": [Zone(name=b"\0")]}, "use bare_names"),
        ({"zones": [NACOS, NACOS]}, "stands twice"),
        ({"zones": [Zone(name=(b"\x3f" + b"z" * 63) * 3 + b"\0")]}, "leaves no room"),
        ({"zones": [Zone(name=b"\1a\0", bare_names=True), Zone(name=b"\1b\0", bare_names=True)]}, "only one zone"),
        ({"zones": [Zone(name=b"\1a\0", bare_names=True, bare_allow=("*",))]}, "neither"),
        ({"zones": [Zone(name=b"\1a\0", bare_names=True, bare_allow=("*.",))]}, "neither"),
        ({"zones": [Zone(name=b"\1a\0", bare_names=True, bare_allow=("www.example.com",))]}, "neither"),
        ({"zones": [Zone(name=b"\1a\0", bare_names=True, bare_allow=("*.a..b",))]}, "not a DNS name"),
        ({"zones": [NACOS], "namespaces": {"prod": "1", "PROD": "2"}}, "stands twice"),
        ({"zones": [NACOS], "namespaces": {"public": "1"}}, "hidden"),
        ({"zones": [NACOS], "groups": {"": "A"}}, "no label"),
        ({"zones": [NACOS], "groups": {"x" * 64: "A"}}, "no label"),
    ],
)
def test_a_configuration_that_names_cannot_follow_is_refused_in_words(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Names(**arguments)  # type: ignore[arg-type]


# Bare names

BARE = Zone(name=b"\5nacos\0", bare_names=True, bare_allow=("single-label", "*.db.example.com"))
BARE_NAMES = Names([BARE], nacos_hosts=["nacos-server", "nacos.db.example.com", "10.0.0.9"])


@pytest.mark.parametrize("name", ["mysql-orders", "orders.db.example.com", "a.b.DB.example.com"])
def test_a_name_outside_every_zone_may_be_a_bare_service(name: str) -> None:
    target = meaning(name, BARE_NAMES)

    assert isinstance(target, Outside)
    assert target.bare_zone == BARE
    assert [candidate.folded for candidate in target.bare] == [("public", "default_group", name.lower())]


@pytest.mark.parametrize(
    "name",
    [
        ".",
        "www.example.com",
        "db.example.com",
        "xdb.example.com",
        "localhost",
        "a.localhost",
        "wpad",
        "WPAD.db.example.com",
        "arpa",
        "1.0.0.127.in-addr.arpa",
        "nacos-server",
        "Nacos.DB.example.com",
    ],
)
def test_s44_s72_other_names_are_never_taken_from_the_registry(name: str) -> None:
    assert meaning(name, BARE_NAMES) == Outside()


def test_without_bare_names_everything_outside_is_only_forwarded() -> None:
    assert meaning("mysql-orders") == Outside()


def test_s44_the_name_of_a_nacos_server_is_not_looked_up_even_inside_a_zone() -> None:
    names = Names([Zone(name=b"\4corp\0")], nacos_hosts=["nacos.corp"])

    assert meaning("nacos.corp", names) == Outside()


# What a service is called

part = st.text(st.characters(exclude_characters="."), min_size=1, max_size=8)
word = part | st.sampled_from(
    ["cluster", "group", "ns", "addr", "nacos", "_any", "a", "PAY", "10-0-0-1", "xn--caf-dma", "@@"]
)
dotted = st.lists(word, min_size=1, max_size=4).map(".".join)
keys = st.builds(ServiceKey, st.sampled_from(["public", "33ea21bc"]), dotted | st.just("DEFAULT_GROUP"), dotted)

MANY = Names(
    [NACOS, Zone(name=b"\4prod\0", namespace="33ea21bc", group="PAY"), Zone(name=b"\5group\5nacos\0")],
    namespaces={"prod": "33ea21bc"},
    groups={"pay": "com.example.PAY", "a": "b"},
)


@given(keys)
def test_a_full_name_leads_back_to_its_service_and_to_nothing_else(key: ServiceKey) -> None:
    for names in (NAMES, MANY):
        wire = names.full_name(key)
        if wire is None:
            assert names.unnameable(key)
            continue
        target = names.resolve(labels_of(wire))

        assert isinstance(target, ServiceName)
        assert [candidate.folded for candidate in target.candidates] == [
            folded_key(key.namespace, key.group, key.service)
        ]
        assert (target.cluster, target.prefix, names.unnameable(key)) == ("", Prefix.NONE, None)


@given(keys)
def test_a_short_name_means_its_service_before_any_other(key: ServiceKey) -> None:
    wire, full = MANY.short_name(key), MANY.full_name(key)
    assume(wire is not None and full is not None)
    target = MANY.resolve(labels_of(wire))

    assert isinstance(target, ServiceName)
    assert target.candidates[0].folded == folded_key(key.namespace, key.group, key.service)
    assert len(wire) <= len(full)


@pytest.mark.parametrize(
    ("key", "full", "short"),
    [
        (("public", "DEFAULT_GROUP", "Orders"), "Orders.DEFAULT_GROUP.group.public.ns.nacos.", "Orders.nacos."),
        (("public", "com.example.PAY", "a.b"), "a.b.pay.group.public.ns.nacos.", "a.b.pay.group.nacos."),
        (("public", "x.y", "s"), r"s.x\.y.group.public.ns.nacos.", r"s.x\.y.group.nacos."),
        (("33ea21bc", "DEFAULT_GROUP", "s"), "s.DEFAULT_GROUP.group.33ea21bc.ns.nacos.", "s.33ea21bc.ns.nacos."),
        (
            ("public", "DEFAULT_GROUP", "my.redis.cluster"),
            "my.redis.cluster._any.cluster.DEFAULT_GROUP.group.public.ns.nacos.",
            "my.redis.cluster._any.cluster.DEFAULT_GROUP.group.public.ns.nacos.",
        ),
        (("public", "DEFAULT_GROUP", "订单"), "订单.DEFAULT_GROUP.group.public.ns.nacos.", "订单.nacos."),
        (("public", "DEFAULT_GROUP", "a..b"), r"a\.\.b.DEFAULT_GROUP.group.public.ns.nacos.", r"a\.\.b.nacos."),
        (
            ("public", "DEFAULT_GROUP", "providers:com.x.Foo:1.0:g"),
            "providers:com.x.Foo:1.0:g.DEFAULT_GROUP.group.public.ns.nacos.",
            "providers:com.x.Foo:1.0:g.nacos.",
        ),
    ],
)
def test_s03_s04_names_of_services(key: tuple[str, str, str], full: str, short: str) -> None:
    assert name_text(NAMES.full_name(ServiceKey(*key)) or b"") == full
    assert name_text(NAMES.short_name(ServiceKey(*key)) or b"") == short


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (("public", "DEFAULT_GROUP", "x" * 70), "70 bytes"),
        (("public", "g" * 64, "x"), "64 bytes"),
        (("public", "DEFAULT_GROUP", "订" * 22), "66 bytes"),
        (("public", "DEFAULT_GROUP", ".".join(["x" * 60] * 4)), "255 bytes"),
        (("other", "DEFAULT_GROUP", "x"), "not in the configuration"),
        (("public", "DEFAULT_GROUP", "_http._tcp.x"), "prefix"),
        (("public", "DEFAULT_GROUP", "_grpc_config.x"), "prefix"),
        (("public", "pay", "x"), "an alias"),
        (("public", "DEFAULT_GROUP", ""), "empty"),
        (("public", "DEFAULT_GROUP", "\ud800"), "half a character"),
    ],
)
def test_s04_a_service_that_no_name_leads_to_says_why(key: tuple[str, str, str], reason: str) -> None:
    assert NAMES.full_name(ServiceKey(*key)) is None
    assert reason in (NAMES.unnameable(ServiceKey(*key)) or "")


def test_a_full_name_may_be_asked_for_under_a_certain_zone() -> None:
    key = ServiceKey("public", "DEFAULT_GROUP", "s")

    assert name_text(MANY.full_name(key, MANY.zones[1]) or b"") == "s.DEFAULT_GROUP.group.public.ns.prod."


def test_names_tell_the_truth_in_one_line() -> None:
    assert repr(NAMES) == "<Names nacos. namespaces=2 groups=2>"
    assert name_to_wire((b"nacos",)) == NACOS.name


OUTSIDE_RULES = [
    NAMES,
    Names([]),
    Names([Zone(name=b"\5nacos\0"), Zone(name=b"\2db\5nacos\0")], nacos_hosts=["nacos.example.com", "www.nacos"]),
    Names([Zone(name=text_name("xn--zfr3pq20ciq8a"))]),
    Names([Zone(name="\u212aelvin".encode().join((b"\x08", b"\0")))]),  # folds to plain letters
    Names([Zone(name=b"\5nacos\0", bare_names=True, bare_allow=("single-label", "*.db.example.com"))]),
    Names([Zone(name=b"\5nacos\0", bare_names=True, bare_allow=("*.db.example.com",))]),
]
PLAIN_LABELS = (b"nacos", b"db", b"example", b"com", b"www", b"kelvin", b"mynacos", b"a\5nacos", b"wpad", b"a" * 63)
OTHER_LABELS = (b"xn--zfr3pq20ciq8a", b"xn--a", "\u212aelvin".encode(), "\u6ce8\u518c".encode(), b"\xff")
LABELS = st.sampled_from(PLAIN_LABELS + OTHER_LABELS)


@given(st.sampled_from(OUTSIDE_RULES), st.lists(LABELS, max_size=3).map(tuple))
def test_what_is_plainly_outside_is_outside_with_no_service_that_could_take_it(
    names: Names, labels: tuple[bytes, ...]
) -> None:
    wire = name_to_wire(labels).lower()

    assert not names.is_plainly_outside(wire) or names.resolve(labels) == Outside()


def test_a_common_name_is_plainly_outside_and_no_name_of_ours_is() -> None:
    assert all(names.is_plainly_outside(text_name("www.example.org")) for names in OUTSIDE_RULES)
    assert not any(names.is_plainly_outside(text_name("a.nacos")) for names in OUTSIDE_RULES if len(names.zones) == 2)
