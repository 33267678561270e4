"""State the version of this tool, which is also in the header of what it vendors."""

__version__ = "0.3.0"
