"""Describe the package that a series patches; the engine is told nothing else of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath


@dataclass(frozen=True, kw_only=True)
class Project:
    """List what the engine has to know of a package to find it, search it and add files to it.

    Attributes:
        name: what messages call the project.
        package: the name by which Python imports the package.
        core: a folder in the package by which it is recognised.
        layouts: where the package may stand below the path that the user gives, the preferred
            place first; ``.`` is the package itself.
        marker: a name that some file mentions in every tree that can be patched.
        too_old: why a tree without the marker is refused.
        vendor_folder: where vendored modules go, below the package.
        vendored: the names of the vendored modules.
        modules: the Python package that holds the text of the vendored modules.
        templates: the Python package that holds the templates of insertions.
        header: the first line of a vendored module, with a place for ``{version}``.
        stems: parts of the names that the series searches for. What is searched for together
            costs less, and only the files with a part of a name can hold the whole. A name
            without a part here is found all the same, by a search of its own.
        wheel_suffix: what tells a patched wheel's version from the original's.
    """

    name: str
    package: str
    core: str
    layouts: tuple[str, ...]
    marker: str
    too_old: str
    vendor_folder: PurePosixPath
    vendored: tuple[str, ...] = ()
    modules: str = ""
    templates: str = ""
    header: str
    stems: tuple[bytes, ...] = ()
    wheel_suffix: str

    @cached_property
    def folders(self) -> tuple[frozenset[str], ...]:
        """List, level by level, the names of the folders that lead to the package."""
        paths = [PurePosixPath(layout).parts for layout in self.layouts]
        names = frozenset(name for path in paths for name in path)
        return (names,) * max(map(len, paths))
