"""Select the trees of a run: in the order in which they were asked for, each once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.matrix.repositories import Repositories
from sgl_npu_patch.matrix.revisions import select_revisions
from sgl_npu_patch.matrix.trees import TreeRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The trees that a user asks for.

    Attributes:
        repository: what ``revs`` are about; None if there are none.
        kinds: which of ``revs``, ``releases`` and ``trees`` there are, in the order asked.
        revs: globs over tags and branches, names, and ranges A..B.
        releases: specifiers of versions, a fork's name before them perhaps.
        trees: folders and archives.
        first_parent: follow ranges along first parents only.
        touching: of ranges, take only commits that change a file which the series reads.
    """

    repository: str | None
    kinds: Sequence[str]
    revs: Sequence[str] = ()
    releases: Sequence[str] = ()
    trees: Sequence[str] = ()
    first_parent: bool = False
    touching: bool = False


def select(selection: Selection, repositories: Repositories) -> tuple[TreeRef, ...]:
    """Find the trees of a selection.

    Raises:
        Refused: one cannot be found.
        UsageError: nothing is asked for, or the options do not go together.
    """
    if not selection.kinds:
        raise UsageError("nothing is asked for: give --revs, --releases or --trees")
    if selection.repository is not None and "revs" not in selection.kinds:
        raise UsageError(f"which revisions of {selection.repository}? give --revs 'v*', or --trees")
    ranges = any(".." in pattern for pattern in selection.revs)
    if (selection.first_parent or selection.touching) and not ranges:
        raise UsageError("--first-parent and --touching are about ranges: give --revs A..B")
    found: list[TreeRef] = []
    for kind in selection.kinds:
        if kind == "revs":
            if not selection.repository:
                raise UsageError(
                    "--revs needs a git repository: sgl-npu-patch matrix REPO --revs 'v*'"
                )
            found += select_revisions(
                repositories[selection.repository],
                selection.revs,
                first_parent=selection.first_parent,
                touching=selection.touching,
            )
        elif kind == "releases":
            from sgl_npu_patch.matrix.releases import select_releases

            found += select_releases(selection.releases)
        else:
            found += select_folders(selection.trees)
    return tuple(dict.fromkeys(found))


def select_folders(folders: Iterable[str]) -> Iterator[TreeRef]:
    """Take folders and archives as they are named.

    Raises:
        UsageError: a name is empty.
    """
    for folder in folders:
        if not folder:
            raise UsageError("DIR is empty; give a folder, or . for the current one")
        yield TreeRef(folder, "folder", folder)
