"""A web that does not start beside another one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fakes.child_idle import IdleChild
from nacosdns import child
from nacosdns.edge.page import State

if TYPE_CHECKING:
    from nacosdns.child import Child


class RefusingWeb(IdleChild):
    def __init__(self, own: Child) -> None:
        if own.page.state is State.READY:
            os._exit(3)
        super().__init__(own)


if __name__ == "__main__":
    child.main(RefusingWeb)
