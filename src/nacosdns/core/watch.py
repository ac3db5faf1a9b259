"""Who of our processes is alive, who reads which sockets, and what the supervisor must do next.

Must not know: processes, sockets, signals. Rules: a socket slot without a reader goes to a warm standby at once, else
to another front, else the supervisor covers it; the first restart is at once and later ones wait; nobody is judged by
a supervisor that was late itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

JUDGE_S = 0.25
LATE_S = 0.5
HANGING_S = {"front": 1.0, "keeper": 10.0, "web": 10.0}
DOUBTFUL_S = 3.0
"""A heartbeat of this age is shown as one that hangs: every child has one each second at the latest."""
START_DEADLINE_S = 30.0
DRAIN_S = 2.0
DRAIN_GRACE_S = 1.0
FIRST_START_GRACE_S = 2.0
LONG_LIFE_S = 30.0
DELAY_MIN_S = 0.1
DELAY_MAX_S = 10.0

_CAN_WAIT = 2  # the standby and web start when a front is up

SUPERVISOR_SLOT, KEEPER_SLOT, WEB_SLOT, FIRST_FRONT_SLOT = range(4)


class Phase(Enum):
    """How far a child is."""

    DOWN = "down"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Spawn(NamedTuple):
    """Start a process for this page slot."""

    slot: int


class Kill(NamedTuple):
    """End this process now; its exit comes as every exit does."""

    slot: int
    reason: str


class Activate(NamedTuple):
    """Tell this front to read exactly these socket slots."""

    slot: int
    sockets: tuple[int, ...]


class Drain(NamedTuple):
    """Tell this child to finish and exit."""

    slot: int
    deadline_s: float


class Cover(NamedTuple):
    """Answer SERVFAIL on exactly these socket slots, for no front reads them."""

    sockets: tuple[int, ...]


Action = Spawn | Kill | Activate | Drain | Cover


@dataclass(slots=True)
class Ward:
    """One page slot and the process in it. ``reads`` are socket slots; ``due_at`` is when it may start again."""

    slot: int
    role: str
    due_at: float
    phase: Phase = Phase.DOWN
    reads: tuple[int, ...] = ()
    generation: int = 0
    failures: int = 0
    since: float = 0.0
    surplus: bool = False

    @property
    def delay_s(self) -> float:
        """How long the next restart waits."""
        return min(DELAY_MIN_S * 2 ** (self.failures - 1), DELAY_MAX_S) if self.failures else 0.0


class Watch:
    """The table of all children. Events come in by ``spawned``, ``ready`` and ``exited``; ``plan`` says what to do."""

    def __init__(self, fronts: int, now: float, *, web: bool) -> None:
        self.wards: dict[int, Ward] = {KEEPER_SLOT: Ward(KEEPER_SLOT, "keeper", now)}
        self.stopping = False
        self.covered: tuple[int, ...] = ()
        self._generations = {"keeper": 0, "front": 0, "web": 0}
        self._grace_until = now + FIRST_START_GRACE_S
        self._judged_at = now
        self._waiting = True
        self._fronts = 0
        self.resize(fronts, now, web=web)
        for ward in self.wards.values():
            ward.due_at = now if self._urgency(ward)[0] < _CAN_WAIT else self._grace_until

    def __repr__(self) -> str:
        words = " ".join(f"{ward.role}:{ward.slot}={ward.phase.value}{ward.reads}" for ward in self.wards.values())
        return f"<Watch {words} covered={self.covered}>"

    def adopt(self, wards: Iterable[Ward], fresh: Iterable[int], now: float, *, web: bool) -> None:
        """Takes over children that an earlier supervisor started; those in ``fresh`` slots need no renewal of fronts.

        To be called before anything else.
        """
        self.wards = {ward.slot: ward for ward in wards}
        self._waiting = False
        self._grace_until = now
        for slot in fresh:
            self.wards[slot].generation = 1
        self.resize(self._fronts, now, web=web)

    def is_renewed(self, role: str) -> bool:
        """Whether every process of this role is set up and of its newest generation."""
        return not self.left_to_renew(role)

    def left_to_renew(self, role: str) -> int:
        """How many processes of this role are not."""
        return sum(ward.phase is not Phase.READY or self._is_old(ward) for ward in self._of(role))

    def resize(self, fronts: int, now: float, *, web: bool) -> None:
        """A new number of active fronts, and whether there is a web; surplus ones leave when they are idle."""
        self._fronts = fronts
        present = len(self._of("front"))
        free = (slot for slot in range(FIRST_FRONT_SLOT, FIRST_FRONT_SLOT + fronts + present + 1))
        while len(self._of("front")) < fronts + 1:
            slot = next(slot for slot in free if slot not in self.wards)
            self.wards[slot] = Ward(slot, "front", now, generation=self._generations["front"])
        if web and WEB_SLOT not in self.wards:
            self.wards[WEB_SLOT] = Ward(WEB_SLOT, "web", now, generation=self._generations["web"])
        elif WEB_SLOT in self.wards:
            self.wards[WEB_SLOT].surplus = not web
            self._forget(self.wards[WEB_SLOT])

    def renew(self, role: str) -> None:
        """Every process of this role is to be replaced by one that is born anew, fronts one by one.

        What waits after failures is tried at once: what it failed for may have changed.
        """
        self._generations[role] += 1
        for ward in self._of(role):
            if ward.phase in {Phase.DOWN, Phase.READY} and ward.failures:
                ward.failures = 0
                ward.due_at = ward.since

    def spawned(self, slot: int, now: float) -> None:
        """The process for this slot was started."""
        ward = self.wards[slot]
        ward.phase = Phase.STARTING
        ward.generation = self._generations[ward.role]
        ward.since = now

    def drained(self, slot: int, now: float) -> None:
        """The process was told to finish: it reads nothing any more, and its exit is expected."""
        ward = self.wards[slot]
        ward.phase = Phase.DRAINING
        ward.reads = ()
        ward.since = now

    def kept(self, slot: int, now: float) -> None:
        """The next process of this slot did not come up: the one in it, which was to finish, goes on, and the next try waits."""
        ward = self.wards.get(slot)
        if ward and ward.phase is Phase.DRAINING:
            ward.phase = Phase.READY
            ward.since = now
            self._failed(ward, now)

    def ready(self, slot: int) -> None:
        """The process says that it is set up."""
        ward = self.wards[slot]
        if ward.phase is Phase.STARTING:
            ward.phase = Phase.READY
            self._first_front(ward)

    def exited(self, slot: int, now: float, *, in_order: bool = False) -> None:
        """The process is gone, for whatever reason; or it could not be started. ``in_order``: it finished by itself."""
        ward = self.wards[slot]
        asked = in_order or ward.phase is Phase.DRAINING
        if now - ward.since >= LONG_LIFE_S:
            ward.failures = 0
        ward.due_at = now
        if not asked:
            self._failed(ward, now)
        ward.phase = Phase.DOWN
        ward.reads = ()
        if ward.role == "front":
            self._grace_until = now
        self._first_front(ward)
        self._forget(ward)

    @staticmethod
    def _failed(ward: Ward, now: float) -> None:
        ward.due_at = now + ward.delay_s
        ward.failures += 1

    def _first_front(self, ward: Ward) -> None:
        """The first front is up, or will not come: what left the machine to it may start too."""
        if ward.role == "front" and self._waiting:
            self._waiting = False
            for other in self.wards.values():
                if other.phase is Phase.DOWN and not other.failures:
                    other.due_at = min(other.due_at, ward.since)

    def judge(self, now: float, ages_s: Mapping[int, float]) -> list[Action]:
        """Whom to kill, given the age of each heartbeat by slot. To be called every ``JUDGE_S``.

        After a call that came late (we were stopped, the machine slept) nobody is judged: all heartbeats are old then.
        """
        late = now - self._judged_at > LATE_S
        self._judged_at = now
        if late:
            return []
        for ward in self.wards.values():
            if ward.phase is Phase.READY and now - ward.since >= LONG_LIFE_S:
                ward.failures = 0
        faults = ((ward, self._fault(ward, now, ages_s.get(ward.slot, 0.0))) for ward in self.wards.values())
        return [Kill(ward.slot, fault) for ward, fault in faults if fault]

    @staticmethod
    def _fault(ward: Ward, now: float, age_s: float) -> str:
        match ward.phase:
            case Phase.DOWN:
                return ""
            case Phase.STARTING:
                return "did not start" if now - ward.since > START_DEADLINE_S else ""
            case Phase.READY:
                return "hangs" if age_s > HANGING_S[ward.role] else ""
            case Phase.DRAINING:
                return "did not end" if now - ward.since > DRAIN_S + DRAIN_GRACE_S else ""

    def plan(self, now: float) -> list[Action]:
        """What to do now. The table is brought up to date as if it were done; ``spawned`` alone is told afterwards."""
        actions = self._assignments()
        if not self.stopping:
            actions += self._renewals(now)
        actions += self._cover(now)
        return actions if self.stopping else actions + list(self._spawns(now))

    def due_at(self) -> float | None:
        """When ``plan`` must be asked again, if nothing happens before."""
        waiting = [ward for ward in self.wards.values() if ward.phase is Phase.DOWN or self._is_kept(ward)]
        times = [] if self.stopping else [ward.due_at for ward in waiting]
        if self._unread() and not self.covered:
            times.append(self._grace_until)
        return min(times, default=None)

    @property
    def is_settled(self) -> bool:
        """Whether every front is set up and none has to be replaced."""
        return self.is_renewed("front")

    def _of(self, role: str) -> list[Ward]:
        return [ward for ward in self.wards.values() if ward.role == role]

    def _ready_fronts(self) -> list[Ward]:
        return [ward for ward in self._of("front") if ward.phase is Phase.READY]

    def _spawns(self, now: float) -> Iterator[Action]:
        """What must answer comes first: on a small machine the imports of the others would hold it up."""
        due = (ward for ward in self.wards.values() if ward.phase is Phase.DOWN and ward.due_at <= now)
        for ward in sorted(due, key=self._urgency):
            yield Spawn(ward.slot)

    def _urgency(self, ward: Ward) -> tuple[int, int]:
        standby = ward.slot >= FIRST_FRONT_SLOT + self._fronts
        return {"front": _CAN_WAIT if standby else 0, "keeper": 1, "web": 3}[ward.role], ward.slot

    def _unread(self) -> list[int]:
        read = {socket for ward in self._ready_fronts() for socket in ward.reads}
        return [socket for socket in range(self._fronts) if socket not in read]

    def _assignments(self) -> list[Action]:
        """Gives every socket slot to a ready front, spread evenly, newest generation first."""
        fronts = self._ready_fronts()
        before = {ward.slot: ward.reads for ward in fronts}
        for ward in fronts:
            ward.reads = tuple(socket for socket in ward.reads if socket < self._fronts)
        for socket in self._unread() if fronts else ():
            taker = min(fronts, key=lambda ward: (len(ward.reads), -ward.generation, ward.slot))
            taker.reads = (*taker.reads, socket)
        self._spread(fronts)
        return [Activate(ward.slot, ward.reads) for ward in fronts if ward.reads != before[ward.slot]]

    @staticmethod
    def _spread(fronts: list[Ward]) -> None:
        """Takes sockets from a front that stands in for others and gives them to idle ones."""
        for idle in [ward for ward in fronts if not ward.reads]:
            fullest = max(fronts, key=lambda ward: len(ward.reads))
            if len(fullest.reads) > 1:
                idle.reads = fullest.reads[-1:]
                fullest.reads = fullest.reads[:-1]

    def _renewals(self, now: float) -> list[Action]:
        """One step of replacing what is of an old generation or one too many."""
        others = (*self._of("keeper"), *self._of("web"))
        actions: list[Action] = [
            self._drain(ward, now) for ward in others if self._is_kept(ward) and ward.due_at <= now
        ]
        fronts = self._of("front")
        if any(ward.phase is not Phase.READY for ward in fronts):
            return actions
        idle = [ward for ward in fronts if not ward.reads]
        fresh = [ward for ward in idle if not self._is_old(ward)]
        old_idle = [ward for ward in idle if self._is_old(ward) or len(fronts) > self._fronts + 1]
        old_active = [ward for ward in fronts if ward.reads and self._is_old(ward)]
        if old_active and fresh:
            fresh[0].reads = old_active[0].reads
            actions += [Activate(fresh[0].slot, fresh[0].reads), self._drain(old_active[0], now)]
        elif old_idle:
            actions.append(self._drain(max(old_idle, key=self._is_old), now))
        return actions

    def _drain(self, ward: Ward, now: float) -> Drain:
        self.drained(ward.slot, now)
        return Drain(ward.slot, DRAIN_S)

    def _is_old(self, ward: Ward) -> bool:
        return ward.surplus or ward.generation < self._generations[ward.role]

    def _is_kept(self, ward: Ward) -> bool:
        """Whether a keeper or web goes on until the next one can be tried."""
        return ward.role != "front" and ward.phase is Phase.READY and self._is_old(ward)

    def _forget(self, ward: Ward) -> None:
        """Drops a slot that has no process and is not needed; a new front takes it while an old one has to be replaced."""
        others = [other for other in self._of("front") if other is not ward]
        has_old = any(other.phase is Phase.READY and self._is_old(other) for other in others)
        too_many = ward.role == "front" and len(others) > self._fronts and not has_old
        if ward.phase is Phase.DOWN and (ward.surplus or too_many):
            del self.wards[ward.slot]

    def _cover(self, now: float) -> list[Action]:
        """Covers what nobody reads; while fronts start for the first time, packets may wait a little."""
        unread = tuple(self._unread()) if now >= self._grace_until else ()
        if unread == self.covered:
            return []
        self.covered = unread
        return [Cover(unread)]
