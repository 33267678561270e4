"""Modules with the names of Ascend's packages, for a folder on Python's path; see `process`."""
