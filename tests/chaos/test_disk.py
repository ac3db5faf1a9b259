"""The short form of the drills in which the disk or the database fails."""

from chaos.drills.disk import DRILLS
from chaos.short import make_test

test_drill = make_test(DRILLS)
