"""Judge a deterministic server by what it answers."""
