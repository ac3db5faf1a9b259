"""Which instances count, and the records made of them (S13, S17, S18, S19, S25, S27, S28)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core import answers
from nacosdns.core.dnsname import text_name
from nacosdns.core.model import Instance, NoneHealthy, Policy, RecordType, ServiceKey, Snapshot

KEY = ServiceKey("public", "DEFAULT_GROUP", "s")
ZONE = text_name("nacos")
OWNER = text_name("s.nacos")


def snapshot(*instances: Instance, **more: object) -> Snapshot:
    return Snapshot(KEY, instances, **more)  # type: ignore[arg-type]


def one(number: int, **more: object) -> Instance:
    return Instance(f"10.0.0.{number}", 80, **more)  # type: ignore[arg-type]


def chosen(choice: answers.Choice) -> list[str]:
    return [instance.address.rpartition(".")[2] for instance in choice.instances]


@pytest.mark.parametrize(
    ("policy", "more", "wanted"),
    [
        (Policy(), {}, ["1", "2"]),
        (Policy(none_healthy=NoneHealthy.NODATA), {}, []),
        (Policy(none_healthy=NoneHealthy.NODATA), {"threshold_reached": True}, ["1", "2"]),
        (Policy(none_healthy=NoneHealthy.LAST), {"last_healthy": (one(2),)}, ["2"]),
        (Policy(none_healthy=NoneHealthy.LAST), {"last_healthy": (one(9),)}, ["1", "2"]),
        (Policy(primary=True), {}, []),
    ],
)
def test_with_none_healthy_the_flag_and_the_policy_decide(
    policy: Policy, more: dict[str, object], wanted: list[str]
) -> None:
    choice = answers.choose(snapshot(one(1, healthy=False), one(2, healthy=False), **more), policy)

    assert chosen(choice) == wanted
    assert choice.why


def test_only_enabled_healthy_ones_with_a_weight_count() -> None:
    listed = (one(1), one(2, enabled=False), one(3, weight=0.0), one(4, healthy=False))

    assert chosen(answers.choose(snapshot(*listed), Policy())) == ["1"]


def test_demoted_ones_stand_in_the_second_tier() -> None:
    choice = answers.choose(snapshot(one(1), one(2), one(3), demoted=2), Policy())

    assert choice.tiers == (0, 1, 1)


def test_an_address_appears_once_with_the_weights_of_its_instances() -> None:
    choice = answers.choose(snapshot(one(1), Instance("10.0.0.1", 81, weight=2.0), one(2)), Policy())
    material = answers.addresses(choice, OWNER, RecordType.A, 1)

    assert [(member.identity, member.weight) for member in material.members] == [("10.0.0.1", 3.0), ("10.0.0.2", 1.0)]
    assert len(material.records) == 2


def test_each_family_gets_its_own_addresses() -> None:
    choice = answers.choose(snapshot(one(1), Instance("2001:db8::2", 80)), Policy())

    assert [r.rdata for r in answers.addresses(choice, OWNER, RecordType.A, 1).records] == [b"\n\0\0\1"]
    assert len(answers.addresses(choice, OWNER, RecordType.AAAA, 1).records[0].rdata) == 16


def test_host_names_are_an_alias_only_when_there_is_no_address() -> None:
    names = snapshot(Instance("db-1.ext.test", 80), Instance("db-2.ext.test", 80))
    both = snapshot(Instance("db-1.ext.test", 80), one(1))

    assert answers.addresses(answers.choose(names, Policy()), OWNER, RecordType.A, 1).alias == "db-1.ext.test"
    assert answers.addresses(answers.choose(both, Policy()), OWNER, RecordType.A, 1).alias == ""


def test_srv_has_one_record_an_instance_with_port_priority_and_glue() -> None:
    choice = answers.choose(
        snapshot(one(1, weight=1.0), one(2, weight=3.0), Instance("db.ext.test", 5), demoted=1), Policy()
    )
    material = answers.services(choice, OWNER, ZONE, 1)
    fields = [tuple(int.from_bytes(r.rdata[at : at + 2], "big") for at in (0, 2, 4)) for r in material.records]

    assert fields == [(0, 1, 80), (0, 3, 80), (1, 1, 5)]
    assert material.records[0].rdata[6:] == text_name("10-0-0-1.addr.nacos")
    assert material.records[2].rdata[6:] == text_name("db.ext.test")
    assert [record is None for record in material.glue] == [False, False, True]


@pytest.mark.parametrize(
    ("weights", "scaled"),
    [([1.0, 3.0], [1, 3]), ([0.1, 0.9], [1, 9]), ([0.5, 0.25], [50, 25]), ([10000.0, 0.01], [65535, 1]), ([], [])],
)
def test_srv_weights_keep_their_proportions_in_sixteen_bits(weights: list[float], scaled: list[int]) -> None:
    assert answers.scale_weights(weights) == scaled


@given(st.lists(st.floats(0.001, 10_000), min_size=1, max_size=50))
def test_no_srv_weight_is_zero_or_too_large(weights: list[float]) -> None:
    assert all(1 <= weight <= 65535 for weight in answers.scale_weights(weights))


def test_txt_shows_only_the_keys_of_the_policy_each_pair_once() -> None:
    secret = (("password", "x"), ("version", "1"))
    choice = answers.choose(snapshot(one(1, metadata=secret), one(2, metadata=secret)), Policy())

    assert answers.texts(choice, OWNER, Policy()) == ()
    assert [r.rdata for r in answers.texts(choice, OWNER, Policy(txt_keys=("version",)))] == [b"\x09version=1"]


@pytest.mark.parametrize(
    ("word", "wanted"), [("80", ["1", "2"]), ("81", []), ("s", ["1", "2"]), ("http", ["2"]), ("grpclb", [])]
)
def test_a_port_word_is_a_number_the_services_name_or_a_port_name(word: str, wanted: list[str]) -> None:
    choice = answers.choose(snapshot(one(1), one(2, metadata=(("protocol", "HTTP"),))), Policy())

    assert chosen(answers.only(choice, word, "s")) == wanted


def test_a_grpc_config_is_said_as_grpc_reads_it() -> None:
    record = answers.grpc_config(OWNER, Policy(grpc_config='{"a": 1}'))[0]

    assert record.rdata[1:] == b'grpc_config=[{"serviceConfig": {"a": 1}}]'
    assert answers.grpc_config(OWNER, Policy()) == ()
