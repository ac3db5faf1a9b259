"""What a front tells the keeper when it joins: part by part, so that queries come in between."""

from __future__ import annotations

import asyncio
import random

from fakes.world import SlowLink
from nacosdns.core.balance import Member, Weighted
from nacosdns.core.book import Book, service_id
from nacosdns.core.frames import Asked, Have, known
from nacosdns.core.metrics import Counters
from nacosdns.core.model import Instance, ServiceKey, Snapshot
from nacosdns.core.page import Page
from nacosdns.core.spelling import folded_of
from nacosdns.teller import KEYS_A_FRAME, SERVICES_A_PART, Teller

COUNT = 2 * SERVICES_A_PART + 100
KEYS = [ServiceKey("public", "DEFAULT_GROUP", f"s{number}") for number in range(COUNT)]


def teller_of_many() -> Teller:
    book = Book()
    for key in KEYS:
        book.update(known(Snapshot(key, (Instance("10.0.0.1", 80),))))
        page = Page(
            service_id(folded_of(key)),
            (b"record",),
            balancer=Weighted((Member("a"),), random.Random(1), b""),
            take=1,
            cell=1,
        )
        book.prepared.keep(key.service.encode(), 1, page)
    return Teller(book, Counters(), take_asked=list, take_learned=list)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def asked(link: SlowLink) -> list[ServiceKey]:
    return [key for frame in link.sent if isinstance(frame, Asked) for key in frame.keys]


def test_what_is_in_use_is_told_a_part_at_a_time() -> None:
    async def main() -> tuple[int, list[ServiceKey]]:
        teller, link = teller_of_many(), SlowLink()
        teller.joined(link)
        at_once = len(asked(link))
        await turns(COUNT // KEYS_A_FRAME + 2)
        return at_once, asked(link)

    at_once, told = asyncio.run(main())

    assert at_once == KEYS_A_FRAME
    assert told == KEYS


def test_a_keeper_that_left_is_told_nothing_more() -> None:
    async def main() -> int:
        teller, link = teller_of_many(), SlowLink()
        teller.joined(link)
        teller.left()
        await turns(20)
        return len(asked(link))

    assert asyncio.run(main()) == KEYS_A_FRAME


def test_what_the_keeper_did_not_mention_is_told_a_part_at_a_time() -> None:
    async def main() -> tuple[int, list[ServiceKey]]:
        teller, link = teller_of_many(), SlowLink()
        teller.joined(link)
        for key in KEYS[::2]:
            teller.mentioned(key)
        teller.tell_unmentioned()
        at_once = sum(len(frame.items) for frame in link.sent if isinstance(frame, Have))
        await turns(10)
        return at_once, [item.key for frame in link.sent if isinstance(frame, Have) for item in frame.items]

    at_once, told = asyncio.run(main())

    assert at_once == SERVICES_A_PART // 2
    assert told == KEYS[1::2]
