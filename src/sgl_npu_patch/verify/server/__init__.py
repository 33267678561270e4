"""Run a tree's own server on the simulated NPU, and compare each answer with the one alone.

`run` starts a process in the environment of `simulate`, in which `__main__` makes a tiny model
(`models`), starts the tree's scheduler (`drive`), and runs the scenarios (`scenarios`) on it. Needs
the extra `server`.
"""
