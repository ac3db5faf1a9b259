"""Names that exist because known services stand below them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core.dnsname import labels_of, text_name
from nacosdns.core.model import Zone
from nacosdns.core.naming import Names, ServiceName
from nacosdns.core.spelling import folded_key
from nacosdns.core.suffixes import Suffixes

NAMES = Names([Zone(name=b"\5nacos\0")])


def service(name: str) -> ServiceName:
    target = NAMES.resolve(labels_of(text_name(name)))
    assert isinstance(target, ServiceName), target
    return target


def test_suffixes_of_a_known_service_are_names_as_long_as_one_of_them_is_known() -> None:
    suffixes = Suffixes()
    for name in ("a.b.c", "x.b.c"):
        suffixes.add(folded_key("public", "DEFAULT_GROUP", name))

    suffixes.remove(folded_key("public", "DEFAULT_GROUP", "a.b.c"))

    assert suffixes.covers(service("B.c.nacos"))
    assert suffixes.covers(service("c.DEFAULT_GROUP.group.nacos"))
    assert not suffixes.covers(service("a.b.c.nacos"))
    assert not suffixes.covers(service("x.b.nacos"))
    assert not suffixes.covers(service("c.pay.group.nacos"))
    assert not suffixes.covers(service("_http._tcp.b.c.nacos"))

    suffixes.remove(folded_key("public", "DEFAULT_GROUP", "x.b.c"))

    assert not suffixes.covers(service("b.c.nacos"))


def test_a_group_stands_above_the_names_of_its_alias_form() -> None:
    suffixes = Suffixes()
    suffixes.add(folded_key("public", "ORDERS_GROUP", "s.t"))

    assert suffixes.covers(service("orders_group.nacos"))
    assert suffixes.covers(service("t.orders_group.nacos"))
    assert not suffixes.covers(service("orders_group.pay.group.nacos"))
    assert not suffixes.covers(service("orders_group.public.ns.nacos"))


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join), max_size=12))
def test_adding_and_removing_the_same_services_leaves_nothing(names: list[str]) -> None:
    suffixes = Suffixes()
    for name in names:
        suffixes.add(("public", "g", name))
    proper = {name.split(".", at)[-1] for name in names for at in range(1, name.count(".") + 1)}

    assert {text for text in ("a", "b", "c", "a.b", "b.c", "c.c.c") if ("public", "g", text) in suffixes} == proper & {
        "a",
        "b",
        "c",
        "a.b",
        "b.c",
        "c.c.c",
    }

    for name in reversed(names):
        suffixes.remove(("public", "g", name))

    assert repr(suffixes) == repr(Suffixes())
