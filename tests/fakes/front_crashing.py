"""A front that never comes up."""

import sys

sys.exit(7)
