"""Open revisions of a git repository and list its history, by one process for all of them.

Nothing that a repository configures is run: only plumbing that knows no filter, hook or alias is
called, and objects are asked for by id.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.trees import git
from sgl_npu_patch.engine.trees.directory import find_package, no_package
from sgl_npu_patch.engine.trees.git_contents import Contents
from sgl_npu_patch.engine.trees.git_folders import FOLDER, Entry, Folders
from sgl_npu_patch.engine.trees.git_objects import Objects
from sgl_npu_patch.engine.trees.git_search import Search
from sgl_npu_patch.engine.trees.partial import PartialClone
from sgl_npu_patch.engine.trees.revision import GitTree

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Change:
    """Pair what a path holds in two commits, root-relative; mode 0 where there is nothing."""

    path: str
    before: Entry
    after: Entry


class Repository:
    """Read any number of revisions of one repository; close it at the end.

    Attributes:
        path: the folder that the user named.
        project: whose package is looked for.
        prefix: where that stands below the repository's root.
    """

    def __init__(self, path: Path, project: Project, prefix: PurePosixPath) -> None:
        self.path = path
        self.project = project
        self.prefix = prefix
        self._objects = Objects(path)
        self._folders = Folders(self._objects)
        self._contents = Contents(self._objects, PartialClone(path))
        self._search = Search(str(path), project.stems, self._folders, self._contents)
        self._roots: dict[str, str] = {}

    def __enter__(self) -> Repository:
        return self

    def __exit__(self, *ending: object) -> None:
        self._objects.close()

    def resolve(self, revision: str) -> str:
        """Return the id of the commit that a branch, tag, id or other expression names.

        Raises:
            Refused: it names none, or more than one.
        """
        what = f"{self.path}: {revision!r}"
        if not revision or "\0" in revision or "\n" in revision:
            raise Refused(f"{what} cannot name a revision")
        if _ID.fullmatch(revision) and self._is_commit(revision):
            return revision
        done = git.run(
            self.path,
            ["-c", "core.warnAmbiguousRefs=true", "rev-parse", "--verify", "--end-of-options"],
            f"{revision}^{{commit}}",
        )
        if b" is ambiguous" in done.stderr:
            raise Refused(
                f"{what} is ambiguous: it names more than one object; give more digits of the id, "
                "or refs/tags/NAME or refs/heads/NAME"
            )
        found = done.stdout.decode("ascii", "replace").strip()
        if done.returncode or not _ID.fullmatch(found):
            why = git.first_line(done.stderr) or "not one commit"
            raise Refused(
                f"{what} is no revision of this repository ({why}); "
                "see `git branch --all` and `git tag`, and fetch what is missing"
            )
        return found

    def _is_commit(self, name: str) -> bool:
        """Find out without a further process: a whole id is never taken for another name."""
        if name not in self._roots:
            with suppress(Refused):
                self._read_commits([name])
        return name in self._roots

    def git(
        self, arguments: Sequence[str], *more: str, given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a git command that only reads.

        Raises:
            Refused: it fails.
        """
        done = git.run(self.path, arguments, *more, given=given)
        if done.returncode:
            why = git.first_line(done.stderr)
            raise Refused(f"{self.path}: git {arguments[0]} failed: {why}")
        return done

    def commits(
        self, since: str, until: str, *, first_parent: bool, paths: Sequence[str] = ()
    ) -> list[str]:
        """List the commits of a revision that another one lacks, oldest first, by id.

        Args:
            paths: relative to the folder that was named; take only commits that change one.

        Raises:
            Refused: git fails, as it does where a shallow clone ends.
        """
        options = ["--first-parent"] if first_parent else ["--topo-order"]
        options += ["--full-history"] if paths else []
        done = self.git(
            ["rev-list", "--reverse", *options, "--end-of-options"],
            f"{since}..{until}",
            "--",
            *(f":(literal){path}" for path in paths),
        )
        return done.stdout.decode("ascii").split()

    def parents(self, commit: str) -> list[str]:
        """List the parents of a commit; none of a root, or where a shallow clone ends."""
        done = self.git(["rev-list", "--parents", "--no-walk", "--end-of-options"], commit)
        return done.stdout.decode("ascii").split()[1:]

    def describe(self, commits: Sequence[str]) -> list[str | None]:
        """Find the versions of commits by their nearest tags; see `git.describe`."""
        return git.describe(self.path, commits)

    def changes(self, pairs: Sequence[tuple[str, str]]) -> dict[str, list[Change]]:
        """List for each commit how its files differ from those of the commit paired with it.

        Raises:
            Refused: git fails, as it does where folders are missing.
        """
        done = self.git(
            ["diff-tree", "--stdin", "-r", "-z", "--no-renames", "--no-ext-diff"],
            given="".join(f"{commit} {other}\n" for commit, other in pairs).encode(),
        )
        found: dict[str, list[Change]] = {commit: [] for commit, _ in pairs}
        fields = iter(os.fsdecode(done.stdout).split("\0")[:-1])
        commit = ""
        for field in fields:
            if not field.startswith(":"):
                commit = field
                continue
            old, new, old_id, new_id, _ = field[1:].split(" ")
            change = Change(next(fields), (int(old, 8), old_id), (int(new, 8), new_id))
            found[commit].append(change)
        return found

    def with_any(self, needles: Sequence[bytes], blobs: Sequence[str]) -> set[str]:
        """Find the contents that hold at least one of some needles."""
        return self._search.with_any(needles, blobs)

    def open(self, revision: str) -> GitTree:
        """Find the package in a revision.

        Raises:
            Refused: there is no such revision, or no package in it.
        """
        self._make_room()
        commit = self.resolve(revision)
        if commit not in self._roots:
            self._read_commits([commit])
        tree = GitTree(
            folders=self._folders,
            contents=self._contents,
            search=self._search,
            repository=self.path,
            root=self._roots[commit],
            project=self.project,
            prefix=self.prefix,
            package=PurePosixPath(),
            label=str(self.path),
            revision=commit,
        )
        package = find_package(self.project, tree.has_folder, tree.has_file)
        if package is None:
            raise Refused(no_package(self.project, f"{self.path} at {revision}"))
        tree.package = package
        return tree

    def prepare(self, commits: Sequence[str]) -> None:
        """Read at once what finding the package in each of many commits takes.

        Raises:
            Refused: one of them is missing.
        """
        self._make_room()
        self._read_commits([commit for commit in commits if commit not in self._roots])
        level = [self._roots[commit] for commit in commits]
        above: list[Iterable[str]] = [[part] for part in self.prefix.parts]
        for names in (*above, *self.project.folders, ()):
            self._folders.read(level)
            level = [
                found
                for tree in dict.fromkeys(level)
                for each in names
                for mode, found in [self._folders[tree].get(each, (0, ""))]
                if mode == FOLDER
            ]

    def _make_room(self) -> None:
        if self._folders.full:
            self._folders.clear()
            self._search.clear()

    def _read_commits(self, commits: Sequence[str]) -> None:
        for commit, (kind, data) in zip(commits, self._objects.get(commits), strict=True):
            if kind == "commit":
                root = data.partition(b"\n")[0].removeprefix(b"tree ")
                self._roots[commit] = root.decode("ascii")


def open_repository(path: Path, project: Project) -> Repository:
    """Open the repository that a path is, or stands in, for reading.

    Raises:
        Refused: it is none, or git is missing or refuses it.
    """
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise Refused(f"{path}: {what}; --rev needs a git repository")
    done = git.run(path, ["rev-parse", "--show-prefix"])
    if done.returncode:
        why = git.first_line(done.stderr)
        raise Refused(f"{path}: --rev needs a git repository: {why}")
    prefix = PurePosixPath(os.fsdecode(done.stdout.removesuffix(b"\n")))
    return Repository(path, project, prefix)
