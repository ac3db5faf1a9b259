"""A front whose heart beats and that reads every query and answers none."""

from __future__ import annotations

from fakes.front_fixed import FixedFront
from nacosdns import child


class MuteFront(FixedFront):
    def __init__(self, own: child.Child) -> None:
        super().__init__(own)
        self.mute = True


if __name__ == "__main__":
    child.main(MuteFront)
