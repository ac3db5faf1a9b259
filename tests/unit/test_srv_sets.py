"""SRV answers are sets too: instances that differ only in their Nacos cluster are one record (S19, RFC 2181 5)."""

from __future__ import annotations

from nacosdns.core import answers
from nacosdns.core.dnsname import text_name
from nacosdns.core.model import Instance, Policy, ServiceKey, Snapshot

KEY = ServiceKey("public", "DEFAULT_GROUP", "s")


def srv_wires(*instances: Instance) -> tuple[bytes, ...]:
    choice = answers.choose(Snapshot(KEY, instances), Policy())

    return answers.services(choice, text_name("nacos"), 1).wires


def test_each_port_of_an_address_has_a_record() -> None:
    """S19."""
    assert len(set(srv_wires(Instance("10.0.0.1", 80), Instance("10.0.0.1", 81), Instance("10.0.0.2", 80)))) == 3


def test_an_address_and_port_in_two_clusters_is_one_record() -> None:
    """S19."""
    assert len(srv_wires(Instance("10.0.0.1", 80, cluster="BJ"), Instance("10.0.0.1", 80, cluster="SH"))) == 1
