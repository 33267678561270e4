"""Read Python files as text with an outline."""
