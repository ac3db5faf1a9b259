from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core.model import Policy
from nacosdns.core.policy import Policies, fold

BASE = Policy(ttl_s=1)


def policies(*names: str) -> Policies:
    """A policy for each name, told apart by its TTL, from 10 on."""
    return Policies(BASE, {name: Policy(ttl_s=10 + place) for place, name in enumerate(names)})


@pytest.mark.parametrize(
    ("names", "service", "ttl_s"),
    [
        ((), "orders", 1),
        (("orders",), "orders", 10),
        (("orders",), "orders2", 1),
        (("mysql-*",), "mysql-orders", 10),
        (("mysql-*",), "mysql-", 10),
        (("mysql-*",), "mysql", 1),
        (("mysql-*", "mysql-orders"), "mysql-orders", 11),
        (("mysql-*", "mysql-ord*"), "mysql-orders", 11),
        (("mysql-ord*", "mysql-*"), "mysql-orders", 10),
        (("*", "mysql-*"), "mysql-orders", 11),
        (("*", "mysql-*"), "orders", 10),
        (("*-db",), "orders-db", 10),
        (("a*c*e",), "abcde", 10),
        (("a*c*e",), "abcd", 1),
        (("MySQL-*",), "mysql-ORDERS", 10),
        (("Orders",), "oRDERS", 10),
        (("a.c",), "abc", 1),
        (("a[b]*",), "a[b]c", 10),
        (("订单*",), "订单服务", 10),
        (("a*",), "a\nb", 10),
    ],
)
def test_the_most_specific_policy_wins(names, service, ttl_s):
    assert policies(*names).resolve(service).ttl_s == ttl_s


@given(st.text(max_size=30))
def test_a_name_always_finds_its_own_exact_policy(service):
    name = service.replace("*", "")

    assert policies("*", name).resolve(fold(name)).ttl_s == 11


@given(st.text(max_size=30))
def test_folding_changes_ascii_letters_only(text):
    folded = fold(text)

    assert len(folded) == len(text)
    assert all(new == old or (old.isascii() and new == old.lower()) for old, new in zip(text, folded, strict=True))
