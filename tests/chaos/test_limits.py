"""The short form of the drills in which the host gives too little or too late."""

from chaos.drills.limits import DRILLS
from chaos.short import make_test

test_drill = make_test(DRILLS)
