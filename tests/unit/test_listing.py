"""The list of services that the keeper tells page by page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nacosdns import config as configuration
from nacosdns.core.catalogue import Catalogue
from nacosdns.core.model import Instance, Policy, ServiceKey, ServiceView, Source
from nacosdns.core.services import Services, Settings
from nacosdns.errors import ControlError
from nacosdns.keeper_control import LISTINGS_MAX, PAGE_ROWS, KeeperControl

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = ("public", "DEFAULT_GROUP")


def key(service: str) -> ServiceKey:
    return ServiceKey(*GROUP, service)


class World:
    """A keeper's control, with as many services as wanted."""

    def __init__(self, count: int) -> None:
        self.services = Services(Settings(), lambda _: Policy())
        self.catalogue = Catalogue()
        self.keeper = SimpleNamespace(
            epoch=7,
            services=self.services,
            catalogue=self.catalogue,
            clock=SimpleNamespace(wall=lambda: 2000.0),
            schedule=SimpleNamespace(is_live=lambda _: False),
        )
        config = configuration.Config()
        self.control = KeeperControl(self.keeper, configuration.names(config, ()))  # type: ignore[arg-type]
        view = ServiceView((Instance("10.0.0.1", 80),))
        for number in range(count):
            self.services.learn(key(f"svc-{number}"), view, source=Source.PULL, now=1.0, wall=1000.0)

    def pages(self, *, listed: bool = False) -> Iterator[dict[str, Any]]:
        after: object = None
        while True:
            page: dict[str, Any] = self.control.page({"listed": listed, "after": after})
            yield page
            after = page["next"]
            if after is None:
                return

    def services_told(self, *, listed: bool = False) -> list[str]:
        return [row["service"] for page in self.pages(listed=listed) for row in page["rows"]]


@pytest.mark.parametrize("count", [0, 1, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS])
def test_all_pages_together_hold_every_service_once(count: int) -> None:
    world = World(count)
    pages = list(world.pages())

    assert [page["total"] for page in pages] == [count] * len(pages)
    assert all(len(page["rows"]) <= PAGE_ROWS for page in pages)
    assert sorted(row["service"] for page in pages for row in page["rows"]) == sorted(f"svc-{n}" for n in range(count))


def test_what_goes_meanwhile_is_left_out_and_what_comes_is_not_told() -> None:
    world = World(2 * PAGE_ROWS)
    pages = world.pages()
    first = next(pages)
    told = {row["service"] for row in first["rows"]}
    gone = next(f"svc-{n}" for n in range(2 * PAGE_ROWS) if f"svc-{n}" not in told)
    world.services.remove(key(gone), "deleted")
    world.services.learn(key("new"), ServiceView((Instance("10.0.0.1", 80),)), source=Source.PULL, now=1.0, wall=1.0)
    told |= {row["service"] for page in pages for row in page["rows"]}

    assert told == {f"svc-{n}" for n in range(2 * PAGE_ROWS)} - {gone}


def test_a_page_of_a_keeper_that_is_gone_or_of_a_list_that_is_too_old_is_refused() -> None:
    world = World(PAGE_ROWS + 1)
    after: Any = world.control.page({})["next"]
    (_, number, at) = after

    with pytest.raises(ControlError, match="ask again"):
        world.control.page({"after": (8, number, at)})

    for _ in range(LISTINGS_MAX):
        world.control.page({})

    with pytest.raises(ControlError, match="ask again"):
        world.control.page({"after": (7, number, at)})


def test_what_only_the_catalogue_lists_is_told_when_asked_for_with_the_spellings_that_share_a_name() -> None:
    world = World(1)
    world.catalogue.learn(*GROUP, ("svc-0", "SVC-0", "x" * 70, "other"), 1.0)
    rows = {row["service"]: row for page in world.pages(listed=True) for row in page["rows"]}

    assert world.services_told() == ["svc-0"]
    assert set(rows) == {"svc-0", "SVC-0", "x" * 70, "other"}
    assert rows["svc-0"]["spellings"] == ["SVC-0"]
    assert rows["SVC-0"]["spellings"] == ["svc-0"]
    assert rows["other"]["name"] == "other.nacos."
    assert rows["x" * 70]["name"].startswith("(")
    assert [rows[name]["source"] for name in ("svc-0", "other")] == ["pull", "catalogue"]
    assert all(row.keys() == rows["svc-0"].keys() for row in rows.values())
