"""Settings of hypothesis for every unit test."""

from hypothesis import settings

# A loaded machine is no fault of the code: time is bounded by pytest-timeout and measured in tests of its own.
settings.register_profile("nacosdns", deadline=None)
settings.load_profile("nacosdns")
