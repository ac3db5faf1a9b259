"""Which instances count, and the records made of them (S13, S17, S18, S19, S25, S27, S28)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core import answers, dnsrecord
from nacosdns.core.dnsname import text_name
from nacosdns.core.dnsrecord import owner_pointed
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


def rdata(wire: bytes) -> bytes:
    """Behind pointer, type, class, TTL and length."""
    return wire[12:]


def test_an_address_appears_once_with_the_weights_of_its_instances() -> None:
    choice = answers.choose(snapshot(one(1), Instance("10.0.0.1", 81, weight=2.0), one(2)), Policy())
    material = answers.addresses(choice, RecordType.A, 1)

    assert [(member.identity, member.weight) for member in material.members] == [("10.0.0.1", 3.0), ("10.0.0.2", 1.0)]
    assert len(material.wires) == 2


def test_each_family_gets_its_own_addresses() -> None:
    choice = answers.choose(snapshot(one(1), Instance("2001:db8::2", 80)), Policy())

    assert [rdata(wire) for wire in answers.addresses(choice, RecordType.A, 1).wires] == [b"\n\0\0\1"]
    assert len(rdata(answers.addresses(choice, RecordType.AAAA, 1).wires[0])) == 16


def test_one_address_in_two_spellings_is_one_answer() -> None:
    choice = answers.choose(snapshot(Instance("2001:db8::2", 80), Instance("2001:DB8:0::2", 81)), Policy())

    assert len(answers.addresses(choice, RecordType.AAAA, 1).wires) == 1


@pytest.mark.parametrize("kind", [RecordType.A, RecordType.AAAA, RecordType.SRV])
def test_the_bytes_of_an_answer_are_its_records_owned_by_the_question(kind: RecordType) -> None:
    listed = snapshot(one(1, weight=2.0), Instance("2001:db8::2", 80), Instance("db.ext.test", 81))
    choice = answers.choose(listed, Policy())
    made = answers.services(choice, ZONE, 7) if kind is RecordType.SRV else answers.addresses(choice, kind, 7)

    first, second = text_name("10-0-0-1.addr.nacos"), text_name("2001-db8--2.addr.nacos")
    expected = {
        RecordType.A: [dnsrecord.address_record(OWNER, 7, "10.0.0.1")],
        RecordType.AAAA: [dnsrecord.address_record(OWNER, 7, "2001:db8::2")],
        RecordType.SRV: [
            dnsrecord.srv(OWNER, 7, priority=0, weight=2, port=80, target=first),
            dnsrecord.srv(OWNER, 7, priority=0, weight=1, port=80, target=second),
            dnsrecord.srv(OWNER, 7, priority=0, weight=1, port=81, target=text_name("db.ext.test")),
        ],
    }[kind]
    glue = [dnsrecord.address_record(first, 7, "10.0.0.1"), dnsrecord.address_record(second, 7, "2001:db8::2")]

    assert made.wires == tuple(map(owner_pointed, expected))
    assert made.glue_wires == ((*map(dnsrecord.record_bytes, glue), b"") if kind is RecordType.SRV else ())


def test_a_thousand_members_with_one_left_out_keep_their_order() -> None:
    listed = snapshot(*(Instance(f"10.0.{n >> 8}.{n & 255}", 80, healthy=n != 500) for n in range(1000)))
    choice = answers.choose(listed, Policy())

    assert len(choice.instances) == len(choice.tiers) == 999
    assert [i.address for i in choice.instances] == [i.address for i in listed.instances if i.healthy]


def test_host_names_are_an_alias_only_when_there_is_no_address() -> None:
    names = snapshot(Instance("db-1.ext.test", 80), Instance("db-2.ext.test", 80))
    both = snapshot(Instance("db-1.ext.test", 80), one(1))

    assert answers.addresses(answers.choose(names, Policy()), RecordType.A, 1).alias == "db-1.ext.test"
    assert answers.addresses(answers.choose(both, Policy()), RecordType.A, 1).alias == ""


def test_srv_has_one_record_an_instance_with_port_priority_and_glue() -> None:
    choice = answers.choose(
        snapshot(one(1, weight=1.0), one(2, weight=3.0), Instance("db.ext.test", 5), demoted=1), Policy()
    )
    material = answers.services(choice, ZONE, 1)
    fields = [tuple(int.from_bytes(rdata(wire)[at : at + 2], "big") for at in (0, 2, 4)) for wire in material.wires]

    assert fields == [(0, 1, 80), (0, 3, 80), (1, 1, 5)]
    assert rdata(material.wires[0])[6:] == text_name("10-0-0-1.addr.nacos")
    assert rdata(material.wires[2])[6:] == text_name("db.ext.test")
    assert [wire == b"" for wire in material.glue_wires] == [False, False, True]


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
