"""The verbs of the command line, one a file; each file's ``run`` is its command."""
