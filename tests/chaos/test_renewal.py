"""The short form of the drills in which the program takes its own place."""

from chaos.drills.renewal import DRILLS
from chaos.short import make_test

test_drill = make_test(DRILLS)
