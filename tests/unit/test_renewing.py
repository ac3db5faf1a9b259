"""Renewal in slices: the same answers as at once, the old ones until the end, the newest value in the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import dnslib
import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import VirtualLoop
from nacosdns.core import answers
from nacosdns.core import renewal as renewal_room
from nacosdns.core.balance import BUILT_IN, Weighted
from nacosdns.core.book import Book, service_of
from nacosdns.core.dnsname import text_name
from nacosdns.core.frames import known
from nacosdns.core.model import Instance, Policy, RecordType, ServiceKey, Snapshot
from nacosdns.core.page import Shape
from nacosdns.core.policy import Policies
from nacosdns.core.rendering import Rendering
from nacosdns.core.renewal import is_worth_slices, renewal
from nacosdns.renewing import REPLACED_MAX, Renewing

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.core.page import Page
    from nacosdns.core.rendering import Recipe

KEY = ServiceKey("public", "DEFAULT_GROUP", "big")
SERVICE = service_of(KEY)
NAME = text_name("big.nacos")
ZONE = text_name("nacos")
KINDS = (RecordType.A, RecordType.AAAA, RecordType.SRV)
WHOLE = Shape(0x0100, 65535, b"", over_tcp=True)


def even(firsts: Counter[str], shares: dict[str, int]) -> bool:
    """Exact but for the last window, which begins somewhere in its turns and is not heard to its end."""
    return firsts.keys() == shares.keys() and all(abs(firsts[one] - share) <= 1 for one, share in shares.items())


def snapshot(*instances: Instance, **more: object) -> Snapshot:
    return Snapshot(KEY, instances, live=True, **more)  # type: ignore[arg-type]


def crowd(count: int, *, weight: float = 1.0, **more: object) -> Snapshot:
    """Of ``count`` instances; the weights are as many."""
    members = [Instance(f"10.0.{n // 250}.{n % 250 + 1}", 80, weight + n % 7) for n in range(count)]
    return snapshot(*members, **more)


def rendering(seed: int = 5, **policy: object) -> Rendering:
    return Rendering(Policies(Policy(**policy)), BUILT_IN, random.Random(seed), b"host")  # type: ignore[arg-type]


def choice(told: Snapshot, policy: Policy, cluster: str, port: str) -> answers.Choice:
    chosen = answers.choose(told, policy, cluster)
    return answers.only(chosen, port, KEY.service) if port else chosen


def page_at_once(recipe: Recipe, told: Snapshot, policy: Policy, cluster: str = "", port: str = "") -> Page | None:
    """What the pipeline makes of it; None when it answers otherwise than by a page."""
    material = recipe.material(choice(told, policy, cluster, port), policy)
    return recipe.page(SERVICE, material, policy) if material.wires else None


class Kept:
    """A book with one service and pages of it that were asked for."""

    def __init__(
        self,
        told: Snapshot,
        *,
        kinds: tuple[RecordType, ...] = (RecordType.A,),
        cluster: str = "",
        port: str = "",
        **policy: object,
    ) -> None:
        self.book = Book()
        self.book.update(known(told))
        self.rendering = rendering(**policy)
        self.policy = Policy(**policy)  # type: ignore[arg-type]
        for kind in kinds:
            recipe = self.rendering.recipe(kind, zone=ZONE, cluster=cluster, port=port)
            page = page_at_once(recipe, told, self.policy, cluster, port)
            if page is not None:
                self.book.prepared.keep(NAME, kind, page)
                self.ask(kind)

    def page(self, kind: RecordType = RecordType.A) -> Page | None:
        return self.book.prepared.page(NAME, kind)

    def ask(self, kind: RecordType = RecordType.A) -> dnslib.DNSRecord | None:
        """As a message by TCP, so that nothing is cut; None when there is no page."""
        question = NAME + kind.to_bytes(2, "big") + b"\0\1"
        reply = self.book.prepared.for_tcp(b"\1\0\0\1\0\0\0\0\0\0" + question)
        return None if reply is None else dnslib.DNSRecord.parse(b"\0\7" + reply)

    def first_of_next(self) -> str:
        """Who stands first in the next answer, a second later."""
        self.book.prepared.now += 1.0
        reply = self.ask()
        assert reply is not None
        return str(reply.rr[0].rdata)

    def told(self, kind: RecordType = RecordType.A) -> int | None:
        """Of how many instances it tells; None when it must be decided anew."""
        reply = self.ask(kind)
        return None if reply is None else len(reply.rr)

    def known(self) -> int:
        found = self.book.find(("public", "default_group", "big"), "big")
        assert found is not None
        return len(found.instances)


def replies(page: Page, count: int = 100) -> list[bytes]:
    question = NAME + page.question[-4:]
    return [page.reply(question, WHOLE, page.step(now * 1.0)) for now in range(count)]


INSTANCES = st.lists(
    st.builds(
        Instance,
        st.sampled_from([*(f"10.0.0.{n}" for n in range(9)), "2001:db8::1", "2001:db8::2", "db-1.ext.test"]),
        st.sampled_from([80, 81]),
        st.sampled_from([0.0, 1.0, 1.0, 2.5, 70.0, 333.0]),
        st.sampled_from([True, True, False]),
        st.sampled_from([True, True, False]),
        st.sampled_from(["A", "B"]),
    ),
    max_size=40,
)


@given(
    INSTANCES,
    INSTANCES,
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(KINDS),
    st.sampled_from([("", ""), ("a", ""), ("", "80"), ("a", "80")]),
    st.sampled_from([0, 1, 3]),
)
def test_a_page_renewed_in_slices_answers_as_one_made_at_once(
    before: list[Instance],
    after: list[Instance],
    threshold: bool,
    demoted: int,
    kind: RecordType,
    which: tuple[str, str],
    taken: int,
) -> None:
    cluster, port = which
    former = snapshot(*before)
    newer = snapshot(*after, threshold_reached=threshold, demoted=min(demoted, len(after)), revision=2)
    kept = Kept(former, kinds=(kind,), cluster=cluster, port=port, answers=taken)
    old = kept.page(kind)
    kept.rendering.rng = random.Random(11)
    answers.at_once(renewal(kept.book, known(newer)))
    new = kept.page(kind)

    other = rendering(11, answers=taken)
    recipe = other.recipe(kind, zone=ZONE, cluster=cluster, port=port)
    wanted = page_at_once(recipe, newer, kept.policy, cluster, port)

    assert kept.book.find(("public", "default_group", "big"), "big") == newer
    if old is None or wanted is None or choice(newer, kept.policy, cluster, port).why:
        assert new is None or new is old  # what is unusual is decided by who asks next
    elif new is not old:
        assert new is not None
        wanted.question = new.question
        assert replies(new) == replies(wanted)
    if new is not None and new is old:
        assert wanted is not None
        assert new.digest == wanted.digest


@pytest.mark.parametrize("kind", [RecordType.A, RecordType.SRV])
def test_until_the_last_slice_the_old_value_is_told_and_then_the_new_one(kind: RecordType) -> None:
    kept = Kept(crowd(400), kinds=(kind,))
    slices = renewal(kept.book, known(crowd(399, weight=2.0)))
    seen = [(kept.told(kind), kept.known()) for _ in slices]

    assert len(seen) >= 5
    assert set(seen) == {(400, 400)}
    assert (kept.told(kind), kept.known()) == (399, 399)


def test_what_is_rendered_between_two_slices_is_of_the_old_value_and_goes_with_it() -> None:
    kept = Kept(crowd(400))
    slices = renewal(kept.book, known(crowd(399)))
    next(slices)
    old = page_at_once(kept.rendering.recipe(RecordType.SRV, zone=ZONE), crowd(400), kept.policy)
    assert old is not None
    kept.book.prepared.keep(NAME, RecordType.SRV, old)
    answers.at_once(slices)

    assert kept.told(RecordType.SRV) is None
    assert kept.told() == 399


def test_only_pages_that_were_asked_for_since_they_were_made_are_renewed() -> None:
    kept = Kept(crowd(400), kinds=(RecordType.A, RecordType.SRV))
    answers.at_once(renewal(kept.book, known(crowd(399))))
    kept.ask()
    answers.at_once(renewal(kept.book, known(crowd(398))))

    assert kept.told(RecordType.SRV) is None
    assert kept.told() == 398


@pytest.mark.parametrize("change", ["all dropped", "another configuration", "evicted", "removed", "changed"])
def test_a_new_page_takes_the_place_of_the_one_that_it_was_made_from_and_of_no_other(change: str) -> None:
    kept = Kept(crowd(400))
    slices = renewal(kept.book, known(crowd(399)))
    for _ in range(4):
        next(slices)
    other = page_at_once(kept.rendering.recipe(RecordType.A, zone=ZONE), crowd(5), kept.policy)
    assert other is not None
    match change:
        case "all dropped":
            kept.book.prepared.drop_all()
        case "another configuration":
            kept.book.prepared.drop_all()
            kept.book.prepared.keep(NAME, RecordType.A, other)
        case "evicted":
            kept.book.prepared.keep(NAME, RecordType.A, other)
        case "removed":
            kept.book.remove(KEY)
        case _:
            kept.book.update(known(crowd(7)))
    answers.at_once(slices)

    assert kept.told() is None
    assert kept.known() == 399


def test_what_stays_the_same_to_who_asks_is_not_rendered_and_its_shares_stay_exact() -> None:
    parts = [1 + n % 5 for n in range(40)]
    members = [Instance(f"10.0.0.{n}", 80, float(part)) for n, part in enumerate(parts)]
    kept = Kept(snapshot(*members))
    page = kept.page()
    firsts: Counter[str] = Counter()
    for turn in range(2 * sum(parts)):
        firsts[kept.first_of_next()] += 1
        if turn % 10 == 0:
            named = [msgspec.structs.replace(one, metadata=(("turn", str(turn)),)) for one in members]
            answers.at_once(renewal(kept.book, known(snapshot(*named, revision=turn))))

    assert kept.page() is page
    assert even(firsts, {f"10.0.0.{n}": 2 * part for n, part in enumerate(parts)})


@pytest.mark.parametrize(
    ("kind", "first", "more"),
    [
        (RecordType.A, {"weight": 5.0}, {}),
        (RecordType.A, {"address": "10.9.9.9"}, {}),
        (RecordType.A, {"healthy": False}, {}),
        (RecordType.A, {}, {"demoted": 5}),
        (RecordType.SRV, {"port": 81}, {}),
        (RecordType.SRV, {"weight": 5.0}, {}),
    ],
)
def test_whatever_an_answer_depends_on_makes_another_page(
    kind: RecordType, first: dict[str, object], more: dict[str, object]
) -> None:
    told = crowd(300)
    kept = Kept(told, kinds=(kind,))
    page = kept.page(kind)
    changed = msgspec.structs.replace(told.instances[0], **first)
    answers.at_once(renewal(kept.book, known(snapshot(changed, *told.instances[1:], **more))))

    assert kept.page(kind) is not None
    assert kept.page(kind) is not page


@pytest.mark.parametrize("weights", [[1, 1, 1], [3, 40, 300, 1, 7]])
def test_shares_are_exact_from_the_first_answer_of_a_renewed_page(weights: list[int]) -> None:
    kept = Kept(snapshot(Instance("10.0.0.9", 80)))
    newer = [Instance(f"10.0.0.{n}", 80, float(weight)) for n, weight in enumerate(weights)]
    answers.at_once(renewal(kept.book, known(snapshot(*newer))))
    firsts: Counter[str] = Counter()
    for _ in range(3 * sum(weights)):
        firsts[kept.first_of_next()] += 1

    assert even(firsts, {f"10.0.0.{n}": 3 * weight for n, weight in enumerate(weights)})


def test_targets_of_renewed_srv_answers_are_known_without_searching() -> None:
    kept = Kept(crowd(300), kinds=(RecordType.SRV,))
    answers.at_once(renewal(kept.book, known(crowd(301))))

    assert kept.book.has_address("10.0.1.51")


def test_in_a_large_book_a_renewed_value_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nacosdns.core.book.PACKED_FROM", 1)
    kept = Kept(crowd(400))
    answers.at_once(renewal(kept.book, known(crowd(399))))

    assert len(kept.book.packed(known(crowd(399)))) < len(known(crowd(399)).body) / 2
    assert (kept.told(), kept.known()) == (399, 399)
    assert [len(item.body) for item in kept.book.known([SERVICE])] == [len(known(crowd(399)).body)]


@pytest.mark.parametrize(
    ("before", "after", "worth"),
    [
        (crowd(400), crowd(399), True),
        (crowd(10), crowd(9), False),
        (crowd(400), crowd(9), False),
    ],
)
def test_big_services_that_are_asked_for_are_worth_slices(before: Snapshot, after: Snapshot, worth: bool) -> None:
    kept = Kept(before)

    assert is_worth_slices(kept.book, known(after)) is worth

    kept.book.prepared.drop_all()

    assert not is_worth_slices(kept.book, known(after))


@pytest.mark.parametrize(
    "after",
    [
        snapshot(*crowd(399).instances[:0]),
        msgspec.structs.replace(crowd(399), live=False),
        msgspec.structs.replace(crowd(399), key=ServiceKey("public", "DEFAULT_GROUP", "BIG")),
    ],
    ids=["empty", "not followed", "another spelling"],
)
def test_what_is_no_plain_change_is_decided_by_who_asks_next(after: Snapshot) -> None:
    kept = Kept(crowd(400))
    answers.at_once(renewal(kept.book, known(after)))

    assert kept.told() is None


def test_a_value_that_says_the_same_keeps_the_page() -> None:
    kept = Kept(crowd(400))
    page = kept.page()
    slices = list(renewal(kept.book, known(crowd(400, revision=9))))

    assert slices == []
    assert kept.page() is page


# Turns of the loop


class Turns:
    """Renewals on a loop on virtual time; ``run`` goes on until nothing is left to do, and looks after each turn."""

    def __init__(self, kept: Kept) -> None:
        self.events: list[str] = []
        log = structlog.wrap_logger(None, processors=[self._note])
        self.renewing = Renewing(kept.book, log)
        self.kept = kept

    def _note(self, _logger: object, _name: str, event: dict[str, object]) -> str:
        self.events.append(str(event["event"]))
        raise structlog.DropEvent

    def run(self, steps: dict[int, Callable[[], None]]) -> list[int | None]:
        """``steps`` are done before the turn of their number. What a question was told after each turn."""

        async def turns() -> list[int | None]:
            told = []
            for turn in range(60):
                steps.get(turn, lambda: None)()
                await asyncio.sleep(0)
                told.append(self.kept.told())
            return told

        loop = VirtualLoop()
        try:
            return loop.run_until_complete(turns())
        finally:
            loop.close()

    def update(self, count: int) -> Callable[[], None]:
        return lambda: self.renewing.update(known(crowd(count)))


def test_a_value_is_told_some_turns_after_it_came() -> None:
    turns = Turns(Kept(crowd(400)))
    told = turns.run({0: turns.update(399)})

    assert told == sorted(told, reverse=True)  # type: ignore[type-var]
    assert 5 <= told.count(400) <= 20
    assert told[-1] == 399


@pytest.mark.parametrize("later", range(1, 14))
def test_a_newer_value_takes_the_place_of_the_one_underway(later: int) -> None:
    turns = Turns(Kept(crowd(400)))
    told = turns.run({0: turns.update(399), later: turns.update(398)})

    assert told == sorted(told, reverse=True)  # type: ignore[type-var]
    assert told[-1] == 398
    assert turns.kept.known() == 398


def test_newer_values_cannot_put_the_old_answers_off_for_ever() -> None:
    turns = Turns(Kept(crowd(400)))
    told = turns.run({2 * turn: turns.update(399 - turn) for turn in range(REPLACED_MAX + 2)})

    assert None in told  # decided anew by who asks
    assert told.index(None) == 2 * (REPLACED_MAX + 1)
    assert turns.kept.known() == 399 - REPLACED_MAX - 1


@pytest.mark.parametrize("turn", range(1, 14))
def test_a_service_that_is_gone_stays_gone(turn: int) -> None:
    turns = Turns(Kept(crowd(400)))
    told = turns.run({0: turns.update(399), turn: lambda: turns.renewing.remove(KEY)})

    assert told[turn:] == [None] * (60 - turn)
    assert len(turns.kept.book) == 0


@pytest.mark.parametrize("turn", range(1, 14))
def test_who_must_know_now_what_was_said_finds_it_in_the_book(turn: int) -> None:
    turns = Turns(Kept(crowd(400)))
    found = []

    def settle() -> None:
        turns.renewing.settle((KEY,))
        found.append(turns.kept.known())

    told = turns.run({0: turns.update(399), turn: settle})

    assert found == [399]
    assert 400 not in told[turn:]


def test_a_small_value_after_a_big_one_underway_wins() -> None:
    turns = Turns(Kept(crowd(400)))
    turns.run({0: turns.update(399), 3: turns.update(3)})

    assert turns.kept.known() == 3


def test_services_are_renewed_one_after_the_other_and_nothing_is_left_at_the_end() -> None:
    turns = Turns(Kept(crowd(400)))
    other = msgspec.structs.replace(crowd(300), key=ServiceKey("public", "DEFAULT_GROUP", "other"))
    turns.kept.book.update(known(msgspec.structs.replace(other, instances=other.instances[1:])))
    turns.run({0: turns.update(399), 1: lambda: turns.renewing.update(known(other))})

    assert turns.kept.known() == 399
    assert repr(turns.renewing) == "<Renewing 0 services>"


def test_what_goes_wrong_in_slices_is_told_and_goes_the_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(Kept(crowd(400)))

    def fail(*_: object) -> None:
        raise ValueError("a balancer's fault")

    monkeypatch.setattr(Weighted, "__init__", fail)
    told = turns.run({0: turns.update(399)})

    assert turns.events == ["renewal.surprise"]
    assert told[-1] is None
    assert turns.kept.known() == 399


def test_what_is_underway_when_the_front_ends_is_dropped() -> None:
    turns = Turns(Kept(crowd(400)))
    told = turns.run({0: turns.update(399), 2: turns.renewing.close})

    assert set(told) == {400}


def test_a_page_of_each_client_goes_the_direct_way() -> None:
    kept = Kept(crowd(400), balancer="hash")

    assert not is_worth_slices(kept.book, known(crowd(399)))


def test_the_bound_of_slices_is_about_three_hundred_instances() -> None:
    assert len(known(crowd(200)).body) < renewal_room.LARGE_BYTES < len(known(crowd(300)).body)
