"""Which part of the bridge answers a control request, and what is said when that part is not there.

Must not know: sockets, what the parts answer. Rules: a part has ``PART_DEADLINE_S``; a dead or silent part is named in
the reply; `status` is whole without any part but the supervisor.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import frames
from nacosdns.core.watch import KEEPER_SLOT, Phase
from nacosdns.errors import ControlError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nacosdns.core.watch import Ward, Watch

PART_DEADLINE_S = 1.0
KEEPER_VERBS = ("services", "cache.accept")
FRONT_VERBS = ("ask", "cache.list", "modules")
_ASKED_MAX = 256

Arguments = dict[str, msgspec.Raw]


class Control:
    """The pending requests. ``tell`` sends a frame to a page slot; ``overview`` is the supervisor's part of `status`.

    ``upgrade`` begins one and says how it stands, as ``upgraded`` does afterwards; ``config`` is the one in use, encoded. ``next_id`` goes on over an upgrade.
    """

    def __init__(
        self,
        watch: Watch,
        tell: Callable[[int, frames.ChannelFrame], bool],
        overview: Callable[[], Mapping[str, object]],
        *,
        upgrade: Callable[[], object],
        upgraded: Callable[[], object],
        config: Callable[[], object],
    ) -> None:
        self._watch = watch
        self._tell = tell
        self._overview = overview
        self._own = {"upgrade": upgrade, "upgrade.state": upgraded, "config": config}
        self.next_id = 1
        self._pending: dict[int, tuple[int, asyncio.Future[msgspec.Raw]]] = {}

    def __repr__(self) -> str:
        return f"<Control {len(self._pending)} pending>"

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a part."""
        return bool(self._pending)

    async def answer(self, ask: frames.Ask) -> frames.Told:
        """The answer to a request from the control socket; never raises for what a part says or fails to say."""
        try:
            return frames.Told(ask.id, await self._route(ask.verb, ask.arguments))
        except ControlError as error:
            return frames.Told(ask.id, error=str(error))

    async def _route(self, verb: str, arguments: Arguments) -> msgspec.Raw:
        if verb == "status":
            return msgspec.Raw(frames.encode(await self._status()))
        if verb == "cache.flush":
            return msgspec.Raw(frames.encode(await self._flush(arguments)))
        if verb in self._own:
            return msgspec.Raw(frames.encode(self._own[verb]()))
        if verb in KEEPER_VERBS:
            return await self._ask(self._ward("keeper"), verb, arguments)
        if verb in FRONT_VERBS:
            return await self._ask(self._ward("front"), verb, arguments)
        raise ControlError(f"unknown request {verb}; this bridge may be older than this command")

    async def _status(self) -> dict[str, object]:
        return {"supervisor": dict(self._overview()), **await self._all("status", {})}

    async def _flush(self, arguments: Arguments) -> dict[str, object]:
        """A name leaves the keeper and every front; what each of them let go of."""
        parts = await self._all("cache.flush", arguments)
        if isinstance(parts["keeper"], dict):
            raise ControlError(str(parts["keeper"]["error"]))
        return parts

    async def _all(self, verb: str, arguments: Arguments) -> dict[str, object]:
        """What the keeper and every front that is set up say; a part that cannot is ``{"error": why}``."""
        fronts = [ward for ward in self._watch.wards.values() if ward.role == "front" and ward.phase is Phase.READY]
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self._part(self._watch.wards[KEEPER_SLOT], verb, arguments))
            tasks = {str(ward.slot): group.create_task(self._part(ward, verb, arguments)) for ward in fronts}
        return {"keeper": keeper.result(), "fronts": {slot: task.result() for slot, task in tasks.items()}}

    async def _part(self, ward: Ward, verb: str, arguments: Arguments) -> object:
        try:
            return await self._ask(ward, verb, arguments)
        except ControlError as error:
            return {"error": str(error)}

    def _ward(self, role: str) -> Ward:
        """The child of this role that should answer: of fronts one that reads sockets."""
        wards = [ward for ward in self._watch.wards.values() if ward.role == role]
        return min(wards, key=lambda ward: (ward.phase is not Phase.READY, not ward.reads, ward.slot))

    async def _ask(self, ward: Ward, verb: str, arguments: Arguments) -> msgspec.Raw:
        if ward.phase is not Phase.READY:
            raise ControlError(f"the {ward.role} is {ward.phase.value}; try again in a moment")
        if len(self._pending) >= _ASKED_MAX:
            raise ControlError("too many requests at once; try again in a moment")
        number, self.next_id = self.next_id, self.next_id + 1
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._pending[number] = (ward.slot, answer)
        try:
            until = time.monotonic() + PART_DEADLINE_S
            if not self._tell(ward.slot, frames.Ask(number, verb, arguments, until=until)):
                raise ControlError(f"the {ward.role} cannot be reached; try again in a moment")
            async with asyncio.timeout(PART_DEADLINE_S):
                return await answer
        except TimeoutError:
            raise ControlError(f"the {ward.role} did not answer within {PART_DEADLINE_S:g} s") from None
        finally:
            del self._pending[number]

    def told(self, slot: int, told: frames.Told) -> None:
        """A child's answer; one that comes too late, or from another child, is dropped."""
        own, answer = self._pending.get(told.id, (-1, None))
        if own != slot or answer is None or answer.done():
            return
        if told.error:
            answer.set_exception(ControlError(told.error))
        else:
            answer.set_result(msgspec.Raw(bytes(told.body)))

    def lost(self, slot: int) -> None:
        """The child in this slot is gone: nobody waits for it any more."""
        for own, answer in self._pending.values():
            if own == slot and not answer.done():
                answer.set_exception(ControlError(f"the {self._watch.wards[slot].role} died before it answered"))
