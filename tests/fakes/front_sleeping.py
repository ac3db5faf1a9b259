"""A front that is born and never ready."""

from __future__ import annotations

import asyncio

from fakes.front_fixed import FixedFront
from nacosdns import child


class SleepingFront(FixedFront):
    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    child.main(SleepingFront)
