"""Every number that is seen from outside: its name, its labels and its cell in a page of counters; and their rendering.

Must not know: pages, processes, HTTP. Rules: the table below is the layout of a page, so a new family goes to its end;
label values are a fixed, small set, never a name or a client; the fast path adds to a ``Counters`` and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PREFIX = "nacosdns_"
SECONDS_PER_US = 1e-6
_ZEROS_SHOWN_MAX = 16  # a family of more series than this shows only those that are not zero

FRONT, KEEPER, SUPERVISOR, WEB = "front", "keeper", "supervisor", "web"


class Kind(Enum):
    """What a family does over time, in Prometheus's words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(msgspec.Struct, frozen=True):
    """One metric and its cells: ``first`` and following, in the order of the product of its label values.

    A histogram has one cell for each of ``bounds``, one for what is above them and one for the sum; ``scale`` turns a
    cell into the unit of the name (a histogram or gauge of seconds holds µs). ``roles`` are the processes that have it.
    """

    name: str
    help: str
    kind: Kind
    roles: tuple[str, ...]
    first: int
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bounds: tuple[int, ...] = ()
    scale: float = 1.0

    def __len__(self) -> int:
        if self.kind is Kind.HISTOGRAM:
            return len(self.bounds) + 2
        size = 1
        for _, values in self.labels:
            size *= len(values)
        return size

    def index(self, *values: str) -> int:
        """The cell of these label values, in the order of ``labels``; ValueError for a value that is not of the set."""
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has {len(self.labels)} labels, got {len(values)}")
        offset = 0
        for (name, known), value in zip(self.labels, values, strict=True):
            if value not in known:
                raise ValueError(f"{self.name} has no {name} {value!r}")
            offset = offset * len(known) + known.index(value)
        return self.first + offset

    def series(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Every cell with its labels; not for histograms."""
        names = [name for name, _ in self.labels]
        for offset, values in enumerate(product(*(known for _, known in self.labels))):
            yield self.first + offset, dict(zip(names, values, strict=True))


class _Table:
    """Lays the families out one after the other while this module is read."""

    def __init__(self) -> None:
        self.families: list[Family] = []
        self.size = 0

    def counter(self, name: str, text: str, *roles: str, **labels: str) -> Family:
        return self._add(Family(name, text, Kind.COUNTER, roles, self.size, _split(labels)))

    def gauge(self, name: str, text: str, *roles: str, scale: float = 1.0, **labels: str) -> Family:
        return self._add(Family(name, text, Kind.GAUGE, roles, self.size, _split(labels), scale=scale))

    def histogram(self, name: str, text: str, *roles: str, bounds: tuple[int, ...]) -> Family:
        family = Family(name, text, Kind.HISTOGRAM, roles, self.size, bounds=bounds, scale=SECONDS_PER_US)
        return self._add(family)

    def _add(self, family: Family) -> Family:
        self.families.append(family)
        self.size += len(family)
        return family


def _split(labels: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, tuple(values.split())) for name, values in labels.items())


_table = _Table()

QUERIES = _table.counter(
    "queries_total",
    "Queries answered.",
    FRONT,
    door="udp tcp",
    type="a aaaa srv txt soa ns https other",
    rcode="noerror nodata nxdomain servfail refused formerr notimp badvers other",
    source="zone cache stale upstream none",
)
DROPPED = _table.counter(
    "dropped_total",
    "Packets dropped without an answer.",
    FRONT,
    reason="short response port0 old malformed",
)
BATCH_TIME = _table.histogram(
    "batch_seconds",
    "From the reading of a batch of packets to the sending of its last answer.",
    FRONT,
    bounds=(50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000),
)
SLOW_TIME = _table.histogram(
    "slow_path_seconds",
    "Time of a query that waited for a look-up or an upstream.",
    FRONT,
    bounds=(1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000),
)
SURPRISES = _table.counter("surprises_total", "Queries answered SERVFAIL because of a fault of ours.", FRONT)
BOOK_PAGES = _table.gauge("book_pages", "Pages in the answer book.", FRONT)
L1_ENTRIES = _table.gauge("l1_entries", "Whole packets with prepared replies.", FRONT)
L1_BYTES = _table.gauge("l1_bytes", "Bytes of the prepared replies of whole packets.", FRONT)
TCP_CONNECTIONS = _table.gauge("tcp_connections", "Open TCP connections of clients.", FRONT)
TCP_CLOSED = _table.counter("tcp_closed_total", "TCP connections closed because there were too many.", FRONT)
SERVICES_KNOWN = _table.gauge("services_known", "Services held.", FRONT, KEEPER)
OLDEST_CONFIRMATION = _table.gauge(
    "oldest_confirmation_seconds",
    "Age of the oldest confirmation among the subscribed services.",
    KEEPER,
    scale=SECONDS_PER_US,
)
LOOKUPS = _table.counter(
    "lookups_total",
    "Look-ups of services that the book lacked.",
    FRONT,
    outcome="found missing unreachable refused timeout",
)
NONE_HEALTHY = _table.counter("none_healthy_total", "Answers rendered for a service without a healthy instance.", FRONT)
SPELLING_CLASHES = _table.counter(
    "spelling_clashes_total", "Answers for a name that several spellings of a service share.", FRONT
)
EXTERNALS_CACHED = _table.gauge("externals_cached", "Answers for outside names held.", FRONT, KEEPER)
EXTERNALS_EVICTED = _table.counter("externals_evicted_total", "Answers for outside names given up for room.", FRONT)
EXTERNALS_UNSENT = _table.counter(
    "externals_unsent_total", "Outside answers that the keeper never got because it was away too long.", FRONT
)
STALE_ANSWERS = _table.counter("stale_answers_total", "Outside answers served after their TTL.", FRONT)
UPSTREAM_QUERIES = _table.counter("upstream_queries_total", "Queries sent to upstreams.", FRONT)
UPSTREAM_FAILURES = _table.counter(
    "upstream_failures_total", "Queries that an upstream did not answer, or answered with a failure.", FRONT
)
UPSTREAM_TCP_RETRIES = _table.counter("upstream_tcp_retries_total", "Truncated replies asked again over TCP.", FRONT)
UPSTREAM_SPOOFED = _table.counter(
    "upstream_spoofed_total", "Replies ignored: wrong question or direction, or not to be read.", FRONT
)
LINK_DROPS = _table.counter("link_drops_total", "Links given up because the other side did not read.", FRONT, KEEPER)
LINK_RECONNECTS = _table.counter("link_reconnects_total", "Links made anew.", FRONT)
PUSHES = _table.counter("pushes_total", "Lists pushed by the registry.", KEEPER)
PUSHES_EMPTY = _table.counter("empty_pushes_total", "Pushed lists without an instance.", KEEPER)
PUSHES_DISBELIEVED = _table.counter("disbelieved_pushes_total", "Pushed lists that protection held back.", KEEPER)
PUSHES_MISSED = _table.counter("missed_pushes_total", "Changes found by a pull that no push had told.", KEEPER)
PULLS = _table.counter("pulls_total", "Subscribed services queried as a net under push.", KEEPER)
SUBSCRIPTIONS = _table.gauge("subscriptions", "Services subscribed to.", KEEPER)
REGISTRY_REQUESTS = _table.counter(
    "registry_requests_total", "Requests sent to the registry.", KEEPER, kind="query subscribe unsubscribe list"
)
REGISTRY_FAILURES = _table.counter("registry_failures_total", "Requests that the registry did not do.", KEEPER)
REGISTRY_CONNECTED = _table.gauge("registry_connected", "Namespaces with a connection that answers.", KEEPER)
REGISTRY_NAMESPACES = _table.gauge("registry_namespaces", "Namespaces in the configuration.", KEEPER)
PROTECTED = _table.gauge(
    "protected_services",
    "Services served otherwise than the registry said last, by reason.",
    KEEPER,
    reason="empty shrink held brake",
)
STORE_WRITES = _table.counter("store_writes_total", "Rows written to disk.", KEEPER)
STORE_FAILURES = _table.counter("store_failures_total", "Writes that the disk refused.", KEEPER)
STORE_DAMAGED = _table.counter(
    "store_damaged_total", "Rows or files that could not be read and were set aside.", KEEPER
)
RELOADS = _table.counter("reloads_total", "Configurations read again.", SUPERVISOR, outcome="ok failed")
RESTARTS = _table.counter("child_restarts_total", "Children started again.", SUPERVISOR, child="keeper front web")
ALIVE = _table.gauge("children_alive", "Children that run and are set up.", SUPERVISOR, child="keeper front web")
CANARY = _table.counter("canary_total", "Canary queries through the real socket.", SUPERVISOR, outcome="answered lost")
COVERED = _table.counter(
    "covered_total", "Queries answered SERVFAIL by the supervisor because no front was there.", SUPERVISOR
)
WEB_REQUESTS = _table.counter(
    "web_requests_total", "HTTP requests.", WEB, path="metrics healthz readyz other", status="200 404 405 503"
)
CUT_ANSWERS = _table.counter(
    "cut_answers_total", "Answers by TCP that were cut because a message of 64 KiB cannot hold them.", FRONT
)
UPSTREAM_STRAYS = _table.counter(
    "upstream_strays_total", "Replies under an id that nobody waits for: late ones, and guesses.", FRONT
)

FAMILIES: tuple[Family, ...] = tuple(_table.families)
CELLS: int = _table.size

UDP_TO_TCP = len(QUERIES) // 2
"""From the cell of an answer by UDP to that of the same answer by TCP: the door is the first label."""
query_index = QUERIES.index
"""The cell of ``queries_total``: door, type word, rcode word, source."""

TYPE_WORDS = {1: "a", 28: "aaaa", 33: "srv", 16: "txt", 6: "soa", 2: "ns", 65: "https"}
_RCODE_WORDS = {0: "noerror", 1: "formerr", 2: "servfail", 3: "nxdomain", 4: "notimp", 5: "refused", 16: "badvers"}


def type_word(qtype: int) -> str:
    """The label of a query type; types without a label of their own are ``other``."""
    return TYPE_WORDS.get(qtype, "other")


def rcode_word(rcode: int, answers: int = 1) -> str:
    """The label of a response code; NOERROR without an answer is ``nodata``."""
    if rcode == 0 and not answers:
        return "nodata"
    return _RCODE_WORDS.get(rcode, "other")


@lru_cache(maxsize=4096)
def query_cell(source: str, qtype: int, rcode: int, answers: int = 0, *, over_tcp: bool) -> int:
    """The cell of ``queries_total`` that counts an answer."""
    return query_index("tcp" if over_tcp else "udp", type_word(qtype), rcode_word(rcode, answers), source)


class Counters(defaultdict[int, int]):
    """What one process counted since the last flush: ``counters[index] += n``. Gauges are set, not added."""

    def __init__(self) -> None:
        super().__init__(int)
        self.gauges: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Counters {len(self)} touched, {len(self.gauges)} gauges>"

    def set(self, index: int, value: int) -> None:
        """Sets a gauge at the next flush."""
        self.gauges[index] = value

    def observe(self, histogram: Family, value: int, times: int = 1) -> None:
        """Counts a value (in cells' units: µs) ``times`` times."""
        self[histogram.first + bisect_left(histogram.bounds, value)] += times
        self[histogram.first + len(histogram.bounds) + 1] += value * times

    def flush_into(self, cells: memoryview) -> None:
        """Adds what was counted to a page (cast to ``Q``), sets the gauges, and starts anew."""
        for index, value in self.items():
            cells[index] += value
        self.clear()
        for index, value in self.gauges.items():
            cells[index] = value
        self.gauges.clear()


def gauge_cells() -> tuple[int, ...]:
    """The cells that say how things are now: a new process in an old page clears them."""
    return tuple(
        index
        for family in FAMILIES
        if family.kind is Kind.GAUGE
        for index in range(family.first, family.first + len(family))
    )


class Totals:
    """Counts that somebody else keeps, as totals since the start: hands on what came since the last time."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Totals of {len(self._seen)} cells>"

    def add(self, counters: Counters, index: int, total: int) -> None:
        """Adds the growth of this total to its cell."""
        counters[index] += total - self._seen.get(index, 0)
        self._seen[index] = total


class PageView(msgspec.Struct, frozen=True):
    """The counters of one child: its role, its page slot and all its cells."""

    role: str
    slot: int
    cells: Sequence[int]


def render(pages: Iterable[PageView], info: Mapping[str, str]) -> str:
    """All pages as Prometheus text (version 0.0.4); ``info`` becomes the labels of ``nacosdns_build_info``."""
    pages = tuple(pages)
    lines = [
        f"# HELP {PREFIX}build_info What runs: version and digest of the configuration.",
        f"# TYPE {PREFIX}build_info gauge",
        f"{PREFIX}build_info{_braces(info)} 1",
    ]
    for family in FAMILIES:
        lines += [f"# HELP {PREFIX}{family.name} {family.help}", f"# TYPE {PREFIX}{family.name} {family.kind.value}"]
        for page in pages:
            if page.role in family.roles:
                lines += _series(family, page)
    return "\n".join(lines) + "\n"


def _series(family: Family, page: PageView) -> Iterator[str]:
    own = {"role": page.role, "slot": str(page.slot)}
    if family.kind is Kind.HISTOGRAM:
        yield from _histogram(family, page, own)
        return
    zeros_shown = len(family) <= _ZEROS_SHOWN_MAX
    for index, labels in family.series():
        if page.cells[index] or zeros_shown:
            value = _number(page.cells[index], family.scale)
            yield f"{PREFIX}{family.name}{_braces(own | labels)} {value}"


def _histogram(family: Family, page: PageView, own: Mapping[str, str]) -> Iterator[str]:
    total = 0
    edges = [*(_number(bound, family.scale) for bound in family.bounds), "+Inf"]
    for offset, edge in enumerate(edges):
        total += page.cells[family.first + offset]
        yield f"{PREFIX}{family.name}_bucket{_braces({**own, 'le': edge})} {total}"
    yield f"{PREFIX}{family.name}_sum{_braces(own)} {_number(page.cells[family.first + len(edges)], family.scale)}"
    yield f"{PREFIX}{family.name}_count{_braces(own)} {total}"


def _number(cell: int, scale: float) -> str:
    return str(cell) if scale == 1.0 else f"{cell * scale:.12g}"


def _braces(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
