"""The short form of the drills in which many bridges or many instances do the same at once."""

from chaos.drills.fleet import DRILLS
from chaos.short import make_test

test_drill = make_test(DRILLS)
