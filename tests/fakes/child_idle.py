"""A keeper or web that does nothing, and answers every request with what it was asked."""

from __future__ import annotations

import asyncio
import os

from nacosdns import child
from nacosdns.errors import ControlError


class IdleChild:
    def __init__(self, own: child.Child) -> None:
        self.child = own

    async def run(self) -> None:
        self.child.log.info("fake.password", password=self.child.password)
        self.child.ready(7)
        await asyncio.get_running_loop().create_future()

    def configure(self, config: object, password: str) -> None:
        self.child.log.info("fake.configured", password=password)

    def activate(self, slots: tuple[int, ...]) -> None:
        raise AssertionError("only fronts are told what to read")

    async def drain(self, deadline_s: float) -> None:
        self.child.log.info("fake.drained")

    async def answer(self, verb: str, arguments: dict[str, object]) -> object:
        if verb == "cache.accept":
            raise ControlError("nothing is protected")
        if verb == "cache.list":
            await asyncio.sleep(60)
        if verb == "fault":
            self.child.page.state = 1 // 0
        if verb == "loop":
            return {"loop": type(asyncio.get_running_loop()).__module__.partition(".")[0]}
        return {"verb": verb, "arguments": arguments, "pid": os.getpid(), "uid": os.geteuid()}


if __name__ == "__main__":
    child.main(IdleChild)
