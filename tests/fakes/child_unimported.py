"""A child whose module needs what is not installed."""

from __future__ import annotations

raise ModuleNotFoundError("No module named 'no_such_library'")
