"""A newer value of a big service, taken in in slices: while they are made, its old pages go on answering.

Must not know: the loop, what comes between two slices. Rules: until the last slice the book and the pages tell the old
value, from it on the new one; a page is renewed when somebody asked for it since it was made, the others are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.book import service_of
from nacosdns.core.model import RecordType

if TYPE_CHECKING:
    from nacosdns.core.answers import Slices
    from nacosdns.core.book import Book
    from nacosdns.core.frames import Known
    from nacosdns.core.model import Snapshot
    from nacosdns.core.page import Page

LARGE_BYTES = 8_192
"""An encoded snapshot of so many bytes, some 250 instances, is worth slices: the whole way costs 0.3 ms."""


def is_worth_slices(book: Book, known: Known) -> bool:
    """Whether this is a big service of which somebody asks for pages."""
    return len(known.body) >= LARGE_BYTES and any(map(_is_renewed, book.prepared.pages_of(service_of(known.key))))


def renewal(book: Book, known: Known) -> Slices[None]:
    """Takes it in as ``book.update`` does, with the pages in use made anew. Whoever begins it takes it to its end, or drops it."""
    service = service_of(known.key)
    former = book.replaced_by(known)
    if former is None:
        book.update(known)
        return
    yield
    packed = book.packed(known)
    yield
    snapshot = book.decoded(packed)
    yield
    renewed: dict[Page, Page] = {}
    for page in book.prepared.pages_of(service):
        if page.recipe is None or not _is_renewed(page):
            continue
        made = yield from page.recipe.anew(page, snapshot)
        if made is not None:
            renewed[page] = made
            yield
            if page.recipe.kind is RecordType.SRV and made is not page:
                _tell_targets(book, snapshot, service)
                yield
    book.replace(known, packed, former=former, renewed=renewed)


def _is_renewed(page: Page) -> bool:
    return page.in_use and page.recipe is not None


def _tell_targets(book: Book, snapshot: Snapshot, service: str) -> None:
    """SRV answers name addresses, which are asked for next."""
    for instance in snapshot.instances:
        book.tell_address(instance.address, service)
