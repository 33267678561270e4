"""Print a plan as text, JSON or a unified diff."""
