"""A child whose conductor has a fault."""

from __future__ import annotations

from fakes.child_idle import IdleChild
from nacosdns import child


class FailingChild(IdleChild):
    async def run(self) -> None:
        self.page_count = 1 // 0


if __name__ == "__main__":
    child.main(FailingChild)
