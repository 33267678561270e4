"""Refactor real releases without changing their meaning, and judge what `apply` makes of them.

python -m tests.refactor --per-kind 50
"""
