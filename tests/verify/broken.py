"""A group that cannot be imported."""

raise ImportError("no torch here")
