"""The short form of the drills in which the network between the parts breaks."""

from chaos.drills.network import DRILLS
from chaos.short import make_test

test_drill = make_test(DRILLS)
