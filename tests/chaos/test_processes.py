"""The short form of the drills in which parts of the bridge die."""

from chaos.drills.processes import DRILLS
from chaos.short import make_test

test_drill = make_test(DRILLS)
