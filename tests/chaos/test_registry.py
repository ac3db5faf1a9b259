"""The short form of the drills in which Nacos or the way to it dies."""

from chaos.drills.registry import DRILLS
from chaos.short import make_test

test_drill = make_test(DRILLS)
