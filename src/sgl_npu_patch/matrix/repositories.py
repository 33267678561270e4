"""Keep the repositories of a run open."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.trees.repository import Repository, open_repository


class Repositories:
    """Open each repository once; all are closed at the end."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._opened: dict[str, Repository] = {}

    def __enter__(self) -> Repositories:
        return self

    def __exit__(self, *ending: object) -> None:
        self._closing.close()

    def __getitem__(self, place: str) -> Repository:
        """Return the repository that a path is, or stands in.

        Raises:
            Refused: there is none.
        """
        if place not in self._opened:
            opened = open_repository(Path(place), PROJECT)
            self._opened[place] = self._closing.enter_context(opened)
        return self._opened[place]
