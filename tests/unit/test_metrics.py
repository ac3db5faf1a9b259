from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core import metrics
from nacosdns.core.metrics import Counters, Kind, PageView


def cells() -> memoryview:
    return memoryview(array("Q", bytes(8 * metrics.CELLS)))


def rendered(page: memoryview, role: str = "front") -> list[str]:
    return metrics.render([PageView(role, 3, page.tolist())], {"version": "1", "config": "x"}).splitlines()


def test_totals_of_others_are_added_as_growth():
    counters, totals = metrics.Counters(), metrics.Totals()
    for total in (5, 5, 9):
        totals.add(counters, 3, total)

    assert counters[3] == 9


def test_no_two_series_share_a_cell_and_all_fit_a_page():
    used = [index for family in metrics.FAMILIES for index in range(family.first, family.first + len(family))]

    assert used == list(range(metrics.CELLS))
    assert metrics.CELLS <= 2032


def test_names_and_labels_are_what_prometheus_allows():
    names = [family.name for family in metrics.FAMILIES]

    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").isalnum() for name in names)
    assert all(family.name.endswith("_total") == (family.kind is Kind.COUNTER) for family in metrics.FAMILIES)


def test_a_query_has_one_cell_for_each_door_type_rcode_and_source():
    """S82."""
    indexes = {index for index, _ in metrics.QUERIES.series()}

    assert len(indexes) == 2 * 8 * 9 * 5
    assert metrics.query_index("tcp", "srv", "nxdomain", "zone") in indexes
    with pytest.raises(ValueError, match="smtp"):
        metrics.query_index("smtp", "a", "noerror", "zone")
    with pytest.raises(ValueError, match="4 labels"):
        metrics.query_index("udp")


@given(st.sampled_from([family for family in metrics.FAMILIES if family.kind is not Kind.HISTOGRAM]))
def test_series_and_index_agree(family):
    for index, labels in family.series():
        assert family.index(*labels.values()) == index


@pytest.mark.parametrize(("qtype", "word"), [(1, "a"), (28, "aaaa"), (65, "https"), (64, "other"), (99, "other")])
def test_types_without_a_label_are_other(qtype, word):
    assert metrics.type_word(qtype) == word


@pytest.mark.parametrize(
    ("rcode", "answers", "word"),
    [(0, 1, "noerror"), (0, 0, "nodata"), (3, 0, "nxdomain"), (2, 0, "servfail"), (16, 0, "badvers"), (9, 0, "other")],
)
def test_no_answer_without_an_error_is_nodata(rcode, answers, word):
    assert metrics.rcode_word(rcode, answers) == word


def test_a_flush_adds_what_was_counted_and_starts_anew():
    page, counters = cells(), Counters()
    index = metrics.query_index("udp", "a", "noerror", "zone")
    for _ in range(2):
        counters[index] += 3
        counters.flush_into(page)

    assert page[index] == 6
    assert not counters


def test_a_gauge_is_set_and_not_added():
    page, counters = cells(), Counters()
    for value in (5, 2):
        counters.set(metrics.BOOK_PAGES.index(), value)
        counters.flush_into(page)

    assert page[metrics.BOOK_PAGES.index()] == 2


def test_a_new_process_clears_gauges_and_keeps_counters():
    cleared = set(metrics.gauge_cells())

    assert metrics.BOOK_PAGES.index() in cleared
    assert metrics.PROTECTED.index("brake") in cleared
    assert metrics.QUERIES.first not in cleared
    assert metrics.BATCH_TIME.first not in cleared


def test_a_histogram_is_cumulative_and_in_seconds():
    page, counters = cells(), Counters()
    for value_us, times in ((50, 1), (51, 2), (1_000_000, 1)):
        counters.observe(metrics.BATCH_TIME, value_us, times)
    counters.flush_into(page)
    lines = [line for line in rendered(page) if line.startswith("nacosdns_batch_seconds")]

    assert 'nacosdns_batch_seconds_bucket{role="front",slot="3",le="5e-05"} 1' in lines
    assert 'nacosdns_batch_seconds_bucket{role="front",slot="3",le="0.0001"} 3' in lines
    assert 'nacosdns_batch_seconds_bucket{role="front",slot="3",le="0.1"} 3' in lines
    assert 'nacosdns_batch_seconds_bucket{role="front",slot="3",le="+Inf"} 4' in lines
    assert 'nacosdns_batch_seconds_sum{role="front",slot="3"} 1.000152' in lines
    assert 'nacosdns_batch_seconds_count{role="front",slot="3"} 4' in lines


@given(st.lists(st.integers(0, 10**7), max_size=50))
def test_every_observed_value_is_counted_once(values):
    page, counters = cells(), Counters()
    for value in values:
        counters.observe(metrics.SLOW_TIME, value)
    counters.flush_into(page)
    buckets = page[metrics.SLOW_TIME.first : metrics.SLOW_TIME.first + len(metrics.SLOW_TIME.bounds) + 1].tolist()

    assert sum(buckets) == len(values)
    assert page[metrics.SLOW_TIME.first + len(buckets)] == sum(values)


def test_a_role_shows_only_its_own_metrics():
    front = "\n".join(line for line in rendered(cells(), "front") if not line.startswith("#"))
    keeper = "\n".join(line for line in rendered(cells(), "keeper") if not line.startswith("#"))

    assert "nacosdns_surprises_total" in front
    assert "nacosdns_surprises_total" not in keeper
    assert "nacosdns_pushes_total" in keeper
    assert "nacosdns_pushes_total" not in front


def test_a_large_family_shows_only_what_happened():
    page = cells()
    page[metrics.query_index("udp", "aaaa", "nodata", "zone")] = 7

    assert [line for line in rendered(page) if line.startswith("nacosdns_queries_total")] == [
        'nacosdns_queries_total{role="front",slot="3",door="udp",type="aaaa",rcode="nodata",source="zone"} 7'
    ]


def test_label_values_are_escaped():
    text = metrics.render([], {"version": 'a"b\\c\nd'})

    assert 'nacosdns_build_info{version="a\\"b\\\\c\\nd"} 1' in text.splitlines()


def test_every_family_has_help_and_type():
    lines = rendered(cells())

    assert sum(line.startswith("# HELP") for line in lines) == len(metrics.FAMILIES) + 1
    assert sum(line.startswith("# TYPE") for line in lines) == len(metrics.FAMILIES) + 1
