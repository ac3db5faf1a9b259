"""Scenarios that are too long to write down: crowds of names, thousands of instances, and what is counted of a push."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import dnslib
import pytest

from fakes.clock import VirtualLoop
from nacosdns.core import metrics
from replay.engine import SETTLE_S, Scenario

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = {"list", "query", "subscribe", "unsubscribe", "upstream"}


class Crowded(Scenario):
    """``want whatever`` leaves the reply in ``reply`` to be looked at."""

    def want(self, words: str) -> None:
        if words == "whatever":
            self.next_reply()
        else:
            super().want(words)


def play(directory: Path, script: list[str], config: str = "") -> Scenario:
    """The scenario after its script, with what it was asked and what it counted."""
    path = directory / "scenario.toml"
    path.write_text(f'forward.upstreams = ["192.0.2.53"]\n{config}\n', encoding="utf-8")
    loop = VirtualLoop()
    try:
        scenario = Crowded(path, NEEDED, loop)
        loop.run_until_complete(scenario.play(script))
    finally:
        loop.close()
    return scenario


def asked(scenario: Scenario) -> Counter[str]:
    """How often the registry was asked for each kind of thing."""
    return Counter(call.partition(" ")[0] for call in scenario.registry.calls)


def search_list(directory: Path, names: int) -> Scenario:
    """``names`` that a resolver's search list made of outside names, 25 a second, for both families."""
    questions = [f"ask host{number}.example.com.nacos {kind}" for number in range(names) for kind in ("A", "AAAA")]
    wanted = ["60s want NXDOMAIN aa soa", *["want NXDOMAIN aa soa"] * (2 * names - 1)]
    return play(directory, ["2s ask nosuch.nacos A", "want NXDOMAIN soa", *questions, *wanted])


def test_a_search_list_is_answered_nxdomain_for_both_families_within_the_registrys_budget(tmp_path: Path) -> None:
    """S11: api.example.com.nacos and its like; two queries a name at most, for the service and for SERVICE.GROUP."""
    scenario = search_list(tmp_path, 60)

    assert scenario.upstream.calls == []
    assert asked(scenario)["query"] <= 2 * 60 + 10
    assert asked(scenario)["subscribe"] == 0


def test_a_long_search_list_is_nxdomain_to_the_end(tmp_path: Path) -> None:
    """S11: beyond the budget the catalogue answers."""
    scenario = search_list(tmp_path, 300)

    assert scenario.upstream.calls == []


def test_a_flood_of_random_names_subscribes_nothing_and_hides_no_service(tmp_path: Path) -> None:
    """S50: unknown names, inside and outside, beside one service that is asked all the time."""
    script = ["nacos has real: 10.0.0.1:80", "2s ask real.nacos A", "want NOERROR: 10.0.0.1"]
    for number in range(300):
        script += [f"ask rnd{number}.nacos A", "want NXDOMAIN aa soa", f"ask rnd{number}.ext.test A"]
        script += ["want NXDOMAIN soa", "ask real.nacos A", "want NOERROR: 10.0.0.1"]
    scenario = play(tmp_path, script)
    lasted_s = 900 * SETTLE_S

    assert asked(scenario)["query"] <= 20 * (lasted_s + 1) + 10
    assert {key.service for key in scenario.registry.subscribed} == {"real"}
    assert len(scenario.keeper.services) == 1


def test_an_empty_push_is_counted_once(tmp_path: Path) -> None:
    """S30: one empty list, held back; the metrics say so."""
    script = [
        "nacos has s: 10.0.0.1:80 10.0.0.2:80",
        "ask s.nacos A",
        "want NOERROR: 10.0.0.1 10.0.0.2",
        "10s nacos pushes s: (empty)",
        "20s ask s.nacos A",
        "want NOERROR: 10.0.0.1 10.0.0.2",
        "30s nacos pushes s: 10.0.0.1:80 10.0.0.2:80",
        "40s ask s.nacos A",
        "want NOERROR: 10.0.0.1 10.0.0.2",
    ]
    counts = play(tmp_path, script).counters

    assert counts[metrics.PUSHES_EMPTY.first] == 1
    assert counts[metrics.PUSHES_DISBELIEVED.first] == 1


def ask_many(directory: Path, kind: str, nets: int) -> Scenario:
    """One question by TCP for a service of 250 instances in each of so many networks."""
    instances = " ".join(f"10.1.{net}.1-250:80" for net in range(nets))
    return play(directory, [f"nacos has s: {instances}", f"2s ask s.nacos {kind} tcp", "want whatever"])


@pytest.mark.parametrize("kind", ["A", "SRV"])
def test_five_thousand_instances_give_one_message_that_fits(tmp_path: Path, kind: str) -> None:
    """S57: by TCP as many of them as a message may hold; never silence, and no TC, since there is no larger door."""
    reply = ask_many(tmp_path, kind, 20).reply
    assert reply is not None

    assert reply.header.rcode == dnslib.RCODE.NOERROR
    assert 1000 <= len(reply.rr) <= 5000
    assert len(set(map(str, reply.rr))) == len(reply.rr)
    assert not reply.header.tc


def test_an_answer_that_no_message_can_hold_is_counted(tmp_path: Path) -> None:
    """S57: the metrics of a cut answer are not those of a whole one."""
    whole, cut = ({name for name, value in counted(ask_many(tmp_path, "SRV", nets)) if value} for nets in (1, 20))

    assert cut - whole


def counted(scenario: Scenario) -> list[tuple[str, int]]:
    """Every family with the sum of its series, without those that measure how much there is."""
    return [
        (family.name, sum(scenario.counters[family.first + offset] for offset in range(len(family))))
        for family in metrics.FAMILIES
        if family.kind is not metrics.Kind.GAUGE
    ]
