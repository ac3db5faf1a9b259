"""A keeper or web that hangs when it is told to finish."""

from __future__ import annotations

import time

from fakes.child_idle import IdleChild
from nacosdns import child


class DeafChild(IdleChild):
    async def drain(self, deadline_s: float) -> None:
        time.sleep(60)


if __name__ == "__main__":
    child.main(DeafChild)
