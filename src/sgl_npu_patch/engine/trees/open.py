"""Open whatever a path and a revision name for reading."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from sgl_npu_patch.engine.errors import Refused, UsageError
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees import git
from sgl_npu_patch.engine.trees.directory import DirectoryTree, SourceTree, open_directory

ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@contextmanager
def open_tree(path: Path, project: Project, revision: str | None = None) -> Iterator[SourceTree]:
    """Open the tree in a directory, in a revision of a repository, or in an archive.

    Raises:
        Refused: the package is not there, or it cannot be read.
        UsageError: a revision of something that has none.
    """
    archive = is_archive(path)
    if revision is not None:
        from sgl_npu_patch.engine.trees.repository import open_repository

        if archive:
            raise UsageError(f"only a git repository has revisions, and {path} is an archive")
        with open_repository(path, project) as repository:
            yield repository.open(revision)
    elif path.suffix == ".whl" and archive:
        from sgl_npu_patch.engine.trees.wheel import open_wheel

        yield open_wheel(path, project)
    elif archive:
        from sgl_npu_patch.engine.trees.archive import open_archive

        yield open_archive(path, project)
    else:
        yield open_directory(path, project)


@contextmanager
def as_folder(tree: SourceTree) -> Iterator[Path]:
    """Return the root of a tree as a folder, which is all that Python imports from.

    The Python files of a revision or an archive are written to a temporary one.

    Raises:
        Refused: a file cannot be read, or has no place below the root.
    """
    if isinstance(tree, DirectoryTree):
        yield tree.root.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as scratch:
        root = Path(scratch).resolve()
        # Where the tree is the package itself, it is still found by its name.
        root = root if tree.package.parts else root / tree.project.package
        for path in tree.containing(b""):
            # A tree object of git may hold any name.
            if path.is_absolute() or ".." in path.parts:
                raise Refused(f"{tree.label}: {path} leads out of the tree; nothing is executed")
            try:
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tree.read(path) or b"")
            except OSError as error:
                raise Refused(
                    f"{path}: cannot be written to a temporary folder: {error.strerror}"
                ) from error
        yield root


def is_archive(path: Path) -> bool:
    """Report by its name whether a file is an archive that can be read."""
    return path.name.endswith(ARCHIVES) and path.is_file()


def prefix_of(tree: SourceTree) -> PurePosixPath:
    """Return where a tree's root stands below that of its repository; empty if it is in none."""
    if tree.revision is not None:
        from sgl_npu_patch.engine.trees.revision import GitTree

        assert isinstance(tree, GitTree)
        return tree.prefix
    if not isinstance(tree, DirectoryTree):
        return PurePosixPath()
    root = git.work_tree(tree.root)
    if root is None:
        return PurePosixPath()
    return PurePosixPath(tree.root.resolve().relative_to(root).as_posix())
