"""Balancers from installed packages, good and bad (docs/plugins.md)."""

from __future__ import annotations

import random
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from nacosdns import Member
from nacosdns.core.balance import BUILT_IN, tiered
from nacosdns.errors import ConfigError
from nacosdns.plugins import GROUP, load_balancers

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "plugin"
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")

GOOD = """
class Good:
    per_client = False
    cycle = 1
    def __init__(self, members, rng, identity):
        self.order = tuple(range(len(members)))
    def window(self, count, places, client=b""):
        return (self.order[:places],) * count
"""


@pytest.fixture(autouse=True)
def _test_balancer_is_installed() -> None:
    if "heaviest" not in {point.name for point in entry_points(group=GROUP)}:
        pytest.fail("install the test plugin: pip install --no-build-isolation --no-deps --editable tests/plugin")


def install(folder: Path, source: str, *, module: str = "nacosdns_odd_plugin", name: str = "odd") -> None:
    """Lays a package as pip would: a module, and its metadata with an entry point for ``Good``."""
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}:Good\n", encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python finds packages in, for this test only."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("nacosdns_odd_plugin", "nacosdns_other_plugin"):
        monkeypatch.setitem(sys.modules, module, sys)
        monkeypatch.delitem(sys.modules, module)
    return tmp_path


def test_an_installed_balancer_is_found_beside_the_built_in_ones() -> None:
    found = load_balancers()

    assert {"weighted", "random", "round_robin", "hash", "heaviest"} <= set(found)
    assert {name: found[name] for name in BUILT_IN} == BUILT_IN


def test_the_built_in_balancers_come_in_by_the_same_door() -> None:
    ours = {point.name: point.load() for point in entry_points(group=GROUP) if point.value.startswith("nacosdns.core.")}

    assert ours == BUILT_IN


def test_an_installed_balancer_balances_also_in_tiers() -> None:
    members = tuple(Member(f"10.0.0.{at}:80", float(weight)) for at, weight in enumerate((1, 5, 3, 9)))
    kind = load_balancers()["heaviest"]

    assert kind(members, random.Random(1), b"host").window(2, 3) == ((3, 1, 2),) * 2
    assert tiered(kind, members, (0, 0, 0, 1), random.Random(1), b"host").window(1, 4) == ((1, 2, 0, 3),)


@pytest.mark.parametrize("file", ["nacosdns_test_balancer.py", "pyproject.toml"])
def test_the_page_on_plugins_shows_the_package_that_is_tested(file: str) -> None:
    assert f"\n{(PLUGIN / file).read_text(encoding='utf-8')}```\n" in PAGE


def test_the_example_that_tests_a_balancer_runs() -> None:
    (example,) = re.findall(r"```python\n(import random.*?)```", PAGE, re.DOTALL)

    exec(compile(example, "docs/plugins.md", "exec"), {})  # noqa: S102 - our own page


def test_a_balancer_of_another_package_is_taken_as_it_is(site: Path) -> None:
    install(site, GOOD)

    assert load_balancers()["odd"].__name__ == "Good"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import nothing_like_this", "cannot be imported: No module named 'nothing_like_this'"),
        ("1 / 0", "cannot be imported: division by zero"),
        ("class Bad: pass", "cannot be imported: module 'nacosdns_odd_plugin' has no attribute 'Good'"),
        ("Good = 7", "is not a class"),
        (GOOD.replace("per_client = False", ""), "no per_client"),
        (GOOD.replace("cycle = 1", "cycle = -1"), "its cycle is not a whole number"),
        (GOOD.replace("cycle = 1", ""), "failed when it was tried: AttributeError"),
        (GOOD.replace("members, rng, identity", "members"), "failed when it was tried: TypeError"),
        (GOOD.replace("return", "1 / 0; return"), "failed when it was tried: ZeroDivisionError"),
        (GOOD.replace("* count", "* 3"), "window(4, 1) of 3 members is not a tuple of 4 orders"),
        (GOOD.replace("[:places]", ""), "window(4, 1) of 3 members has an order that is not a tuple of 1"),
        (
            GOOD.replace("tuple(range(len(members)))", "(0, 0, 0)"),
            "window(4, 2) of 3 members has an order that is not of different",
        ),
        (
            GOOD.replace("range(len(members))", "range(1, 4)"),
            "has an order that is not of different members: (1, 2, 3)",
        ),
        (GOOD.replace("(self.order[:places],) * count", "[self.order[:places]] * count"), "is not a tuple of 4 orders"),
    ],
)
def test_a_bad_balancer_stops_the_start_with_its_package_and_its_fault(site: Path, source: str, fault: str) -> None:
    install(site, source)

    with pytest.raises(ConfigError) as caught:
        load_balancers()

    assert fault in str(caught.value)
    assert 'balancer "odd" of package nacosdns_odd_plugin cannot be used' in str(caught.value)
    assert "pip uninstall nacosdns_odd_plugin" in str(caught.value)


def test_the_name_of_a_built_in_balancer_is_not_given_away(site: Path) -> None:
    install(site, GOOD, name="weighted")

    with pytest.raises(ConfigError, match="its name is taken by a built-in one"):
        load_balancers()


def test_two_packages_cannot_share_a_name(site: Path) -> None:
    install(site, GOOD)
    install(site, GOOD, module="nacosdns_other_plugin")

    with pytest.raises(ConfigError, match="its name is taken by nacosdns_o"):
        load_balancers()
