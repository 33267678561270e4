"""Read a package from a git revision: bytes as stored, without a checkout.

Nothing that a repository configures is run: only plumbing that knows no filter, hook or alias is
called, objects are asked for by id, and what a partial clone lacks is fetched under the user's
configuration, with no more than the address taken from the repository's.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from types import TracebackType

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.stems import STEMS
from sgl_npu_patch.engine.trees import git
from sgl_npu_patch.engine.trees.directory import find_package, is_source, no_package
from sgl_npu_patch.engine.trees.git_objects import Objects, first_line

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_FOLDER, _LINK, _SUBMODULE = 0o040000, 0o120000, 0o160000
_KEPT = 48 << 20
"""Bytes of contents to keep; one release has about 30 MB of Python."""
_FOLDERS = 5_000
"""How many folders to keep; one release has about 300, and most commits change about five."""
_ABOVE = ("python", "sglang")
"""Folders that lead to the package, in a repository's root or in one of them."""
_PROTOCOLS = "file:git:http:https:ssh"
_PARTIAL = r"^(extensions\.partialclone|remote\..*\.(promisor|url))$"

_NOTHING: tuple[int, tuple[tuple[str, str], ...]] = (0, ())
_UNREAD = (0, 0)
Entry = tuple[int, str]
"""Mode and object id, as a git tree has them."""


@dataclass(frozen=True, slots=True)
class Change:
    """Say what a path holds in two commits; mode 0 stands for nothing. The root is the commit's."""

    path: str
    before: Entry
    after: Entry


@dataclass(slots=True)
class Repository:
    """Answer for any number of revisions of one repository, with one process; close it at the end.

    Folders and contents are the same object in most revisions, so each is looked at once: for
    every blob it is remembered which of the stems sought so far it contains.
    """

    path: Path
    prefix: PurePosixPath
    _objects: Objects
    _folders: dict[str, dict[str, Entry]] = field(default_factory=dict)
    _roots: dict[str, str] = field(default_factory=dict)
    _stems: list[bytes] = field(default_factory=lambda: [*STEMS])
    _whole: dict[tuple[bytes, str], bool] = field(default_factory=dict)
    _found: dict[str, tuple[int, tuple[tuple[str, str], ...]]] = field(default_factory=dict)
    _judged: dict[str, tuple[int, int]] = field(default_factory=dict)
    _listed: tuple[str, dict[str, str]] = ("", {})
    _contents: dict[str, bytes] = field(default_factory=dict)
    _size: int = 0
    _promisors: list[str] | None = None

    def __enter__(self) -> Repository:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._objects.close()

    def resolve(self, revision: str) -> str:
        """Give the id of the commit that a branch, tag, id or other expression names.

        Raises:
            Refused: it names none, or more than one.
        """
        what = f"{self.path}: {revision!r}"
        if not revision or "\0" in revision or "\n" in revision:
            raise Refused(f"{what} cannot name a revision")
        if _ID.fullmatch(revision) and self._is_commit(revision):
            return revision
        done = _git(
            self.path,
            ["-c", "core.warnAmbiguousRefs=true", "rev-parse", "--verify", "--end-of-options"],
            f"{revision}^{{commit}}",
        )
        said = done.stderr.decode("utf-8", "replace")
        if " is ambiguous" in said:
            raise Refused(
                f"{what} is ambiguous: it names more than one object; give more digits of the id, "
                "or refs/tags/NAME or refs/heads/NAME"
            )
        found = done.stdout.decode("ascii", "replace").strip()
        if done.returncode or not _ID.fullmatch(found):
            why = first_line(said) or "not one commit"
            raise Refused(
                f"{what} is no revision of this repository ({why}); "
                "see `git branch --all` and `git tag`, and fetch what is missing"
            )
        return found

    def _is_commit(self, name: str) -> bool:
        """Tell without a further process: a whole id is never taken for another name."""
        if name not in self._roots:
            with suppress(Refused):
                self._read_commits([name])
        return name in self._roots

    def git(
        self, arguments: Sequence[str], *more: str, given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a git command that only reads."""
        done = _git(self.path, arguments, *more, given=given)
        if done.returncode:
            said = first_line(done.stderr.decode("utf-8", "replace"))
            raise Refused(f"{self.path}: git {arguments[0]} failed: {said}")
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

    def changes(self, pairs: Sequence[tuple[str, str]]) -> dict[str, list[Change]]:
        """List for each commit how its files differ from those of the other commit beside it.

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
        for field_ in fields:
            if not field_.startswith(":"):
                commit = field_
                continue
            old, new, old_id, new_id, _ = field_[1:].split(" ")
            change = Change(next(fields), (int(old, 8), old_id), (int(new, 8), new_id))
            found[commit].append(change)
        return found

    def open(self, revision: str) -> GitTree:
        """Find the package in a revision.

        Raises:
            Refused: there is no such revision, or no SGLang in it.
        """
        if len(self._folders) > _FOLDERS:
            self._folders.clear()
            self._found.clear()
        commit = self.resolve(revision)
        if commit not in self._roots:
            self._read_commits([commit])
        tree = GitTree(
            self,
            root=self._roots[commit],
            package=PurePosixPath(),
            label=str(self.path),
            revision=commit,
        )
        package = find_package(tree.has_folder, tree.has_file)
        if package is None:
            raise Refused(no_package(f"{self.path} at {revision}"))
        tree.package = package
        return tree

    def prepare(self, commits: Sequence[str]) -> None:
        """Read what finding the package in many commits takes, in few questions rather than many.

        Raises:
            Refused: one of them is missing.
        """
        if len(self._folders) > _FOLDERS:
            self._folders.clear()
            self._found.clear()
        self._read_commits([commit for commit in commits if commit not in self._roots])
        level = [self._roots[commit] for commit in commits]
        for name in (*self.prefix.parts, *_ABOVE, ""):
            self._read_folders(tree for tree in level if tree not in self._folders)
            names = {name} if name not in _ABOVE else {*_ABOVE}
            level = [
                found
                for tree in dict.fromkeys(level)
                for each in names
                for mode, found in [self._folders[tree].get(each, (0, ""))]
                if mode == _FOLDER
            ]

    def _read_commits(self, commits: Sequence[str]) -> None:
        for commit, (kind, data) in zip(commits, self._objects.get(commits), strict=True):
            if kind == "commit":
                root = data.partition(b"\n")[0].removeprefix(b"tree ")
                self._roots[commit] = root.decode("ascii")

    def folder(self, tree: str) -> dict[str, Entry]:
        """List what stands in a folder, given by the id of its tree."""
        if tree not in self._folders:
            self._read_folders([tree])
        return self._folders[tree]

    def content(self, blob: str) -> bytes:
        """Give the bytes of a blob."""
        if blob in self._contents:
            # What was asked for last is dropped last.
            data = self._contents[blob] = self._contents.pop(blob)
            return data
        for _, data in self._read([blob]):
            self._keep(blob, data)
        return data

    def holding(self, needle: bytes, tree: str, name: str) -> tuple[str, ...]:
        """List the Python files below a folder that contain a needle, by their paths in it.

        Raises:
            Refused: a link or submodule stands in the place of a file that would be searched.
        """
        stem, place = self._seek(needle)
        count, files = self._found.get(tree, _NOTHING)
        if count <= place:
            files = self._search(tree, name)
        return tuple(
            path
            for path, blob in files
            if self._judged[blob][1] >> place & 1 and (stem == needle or self._has(needle, blob))
        )

    def read_ahead(self, tree: str, name: str) -> None:
        """Read what any search of a folder reads.

        Raises:
            Refused: a link or submodule stands in the place of a file that would be searched.
        """
        self._search(tree, name)

    def with_any(self, needles: Iterable[bytes], blobs: Iterable[str]) -> set[str]:
        """Tell which of some contents hold at least one of some needles."""
        sought = [(needle, *self._seek(needle)) for needle in needles]
        wanted = [*dict.fromkeys(blobs)]
        self._look_through(wanted)
        any_stem = sum({1 << place for _, _, place in sought})
        return {
            blob
            for blob in wanted
            if self._judged[blob][1] & any_stem
            and any(
                self._judged[blob][1] >> place & 1 and (stem == needle or self._has(needle, blob))
                for needle, stem, place in sought
            )
        }

    def _seek(self, needle: bytes) -> tuple[bytes, int]:
        """Give what all contents are searched for to find a needle: part of it, with its number."""
        for place, stem in enumerate(self._stems):
            if stem == needle or (stem and stem in needle):
                return stem, place
        self._stems.append(needle)
        return needle, len(self._stems) - 1

    def _has(self, needle: bytes, blob: str) -> bool:
        """Tell whether a content that has a part of a needle has all of it."""
        if (needle, blob) not in self._whole:
            self._whole[needle, blob] = needle in self.content(blob)
        return self._whole[needle, blob]

    def _search(self, tree: str, name: str) -> tuple[tuple[str, str], ...]:
        """List the files below a folder that contain any stem, with their blobs.

        Raises:
            Refused: a link or submodule stands in the place of a file that would be searched.
        """
        if self._listed[0] == tree:
            blobs = self._listed[1]
        else:
            blobs, complete = self._list(tree, name)
            self._listed = (tree, blobs) if complete else ("", {})
        self._look_through([*dict.fromkeys(blobs.values())], tree)
        if self._listed[0] != tree:
            return self._below(tree)
        found = tuple((path, blob) for path, blob in blobs.items() if self._judged[blob][1])
        self._found[tree] = (len(self._stems), found)
        return found

    def _look_through(self, blobs: Sequence[str], tree: str | None = None) -> None:
        """Judge contents for every stem."""
        count = len(self._stems)
        asked = []
        for blob in blobs:
            if self._judged.get(blob, _UNREAD)[0] < count:
                if blob in self._contents:
                    self._judge(blob, self._contents[blob])
                else:
                    asked.append(blob)
        for blob, data in self._read(asked, tree):
            self._judge(blob, data)
            if self._judged[blob][1]:
                self._keep(blob, data)

    def _read(self, blobs: Sequence[str], tree: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Read contents, and fetch those that are missing if that is possible.

        Args:
            tree: a folder that holds all of them.
        """
        left = iter(blobs)
        try:
            for blob, (_, data) in zip(blobs, self._objects.get(blobs), strict=True):
                yield blob, data
                next(left)
        except Refused:
            missing = [*left]
            if not self._fetch_missing(missing, tree):
                raise
            for blob, (_, data) in zip(missing, self._objects.get(missing), strict=True):
                yield blob, data

    def _list(self, tree: str, name: str) -> tuple[dict[str, str], bool]:
        """List the files below a folder, level by level, and tell whether these are all.

        Folders that were searched for every needle are left out.
        """
        count = len(self._stems)
        files: dict[str, str] = {}
        level = [("", tree)]
        complete = True
        while level:
            self._read_folders(folder for _, folder in level if folder not in self._folders)
            inner: list[tuple[str, str]] = []
            for above, folder in level:
                for last, (mode, found) in self._folders[folder].items():
                    if mode == _FOLDER:
                        if not _is_searched(last):
                            continue
                        if self._found.get(found, _NOTHING)[0] < count:
                            inner.append((f"{above}{last}/", found))
                        else:
                            complete = False
                    elif is_source(last) or (mode == _SUBMODULE and _is_searched(last)):
                        _check(str(self.path), f"{name}/{above}{last}", mode)
                        files[f"{above}{last}"] = found
            level = inner
        return files, complete

    def _below(self, tree: str) -> tuple[tuple[str, str], ...]:
        """List the files below a folder that contain any stem, with their blobs."""
        count, files = self._found.get(tree, _NOTHING)
        if count == len(self._stems):
            return files
        found: list[tuple[str, str]] = []
        for last, (mode, inner) in self._folders[tree].items():
            if mode == _FOLDER:
                if _is_searched(last):
                    found += [(f"{last}/{path}", blob) for path, blob in self._below(inner)]
            elif is_source(last) and self._judged[inner][1]:
                found.append((last, inner))
        self._found[tree] = (len(self._stems), tuple(found))
        return self._found[tree][1]

    def _judge(self, blob: str, data: bytes) -> None:
        known, found = self._judged.get(blob, _UNREAD)
        stems = self._stems
        for place in range(known, len(stems)):
            if stems[place] in data:
                found |= 1 << place
        self._judged[blob] = (len(stems), found)

    def _keep(self, blob: str, data: bytes) -> None:
        self._contents[blob] = data
        self._size += len(data)
        while self._size > _KEPT and len(self._contents) > 1:
            self._size -= len(self._contents.pop(next(iter(self._contents))))

    def _read_folders(self, trees: Iterable[str]) -> None:
        wanted = list(dict.fromkeys(trees))
        for tree, (kind, data) in zip(wanted, self._objects.get(wanted), strict=True):
            assert kind == "tree", kind
            self._folders[tree] = dict(_entries(data, len(tree) // 2))

    def _fetch_missing(self, blobs: Sequence[str], tree: str | None) -> bool:
        """Get what a partial clone lacks in one request; git itself would make one for each.

        Returns whether anything was fetched.
        """
        if self._promisors is None:
            self._promisors = self._addresses()
        if not self._promisors:
            return False
        listed = _git(
            self.path,
            ["rev-list", "--objects", "--missing=print", "--no-object-names", "--end-of-options"],
            *([tree] if tree else blobs),
        )
        lines = listed.stdout.decode("ascii", "replace").split()
        lost = {line[1:] for line in lines if line.startswith("?")}
        if listed.returncode:
            # An older git fails on a missing object that it is asked for by id.
            lost.update(blobs)
        missing = [blob for blob in blobs if blob in lost]
        if missing:
            self._fetch(missing)
        return bool(missing)

    def _addresses(self) -> list[str]:
        done = _git(self.path, ["config", "--null", "--get-regexp", _PARTIAL])
        values: dict[str, list[str]] = {}
        for pair in os.fsdecode(done.stdout).split("\0"):
            key, _, value = pair.partition("\n")
            values.setdefault(key, []).append(value)
        named = [f"remote.{name}" for name in values.get("extensions.partialclone", ())]
        remotes = [
            key.removesuffix(".promisor")
            for key, (*_, last) in values.items()
            if key.endswith(".promisor") and last.lower() not in ("false", "no", "off", "0")
        ]
        both = dict.fromkeys(chain(named, remotes))
        return [values[f"{name}.url"][0] for name in both if f"{name}.url" in values]

    def _fetch(self, blobs: Sequence[str]) -> None:
        assert self._promisors
        where = _git(self.path, ["rev-parse", "--git-path", "objects"])
        objects = self.path / os.fsdecode(where.stdout.removesuffix(b"\n"))
        with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as scratch:
            _lay_out(Path(scratch), self._promisors[0], sha256=len(blobs[0]) == 64)
            done = _git(
                git.work_tree(self.path) or self.path,
                ["-c", "fetch.negotiationAlgorithm=noop", "-c", "gc.auto=0", "fetch", "--quiet",
                 "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no",
                 "--filter=blob:none", "--stdin", "origin"],
                given="".join(f"{blob}\n" for blob in blobs).encode(),
                GIT_DIR=scratch,
                GIT_OBJECT_DIRECTORY=str(objects.resolve()),
                GIT_ALLOW_PROTOCOL=os.environ.get("GIT_ALLOW_PROTOCOL", _PROTOCOLS),
            )  # fmt: skip
        if done.returncode:
            why = first_line(done.stderr.decode("utf-8", "replace"))
            raise Refused(
                f"{self.path}: {len(blobs)} files of this partial clone are not here and cannot be "
                f"fetched ({why}); fetch them with git, "
                "for instance by a checkout, or use a clone without --filter"
            )


@dataclass(slots=True)
class GitTree:
    """Read a package from one revision; ``root`` is the tree of the folder that PATH names."""

    repository: Repository
    root: str
    package: PurePosixPath
    label: str
    revision: str | None

    def copies(self) -> tuple[PurePosixPath, ...]:
        """List other copies of the package; see `SourceTree.copies`."""
        if self.package == PurePosixPath():
            return ()
        found = {PurePosixPath("python/sglang"), PurePosixPath("sglang")}
        for above in {PurePosixPath(), self.package.parent}:
            mode, tree = self._find(above / "build") or (0, "")
            if mode == _FOLDER:
                names = [name for name in self.repository.folder(tree) if name.startswith("lib")]
                found.update(above / "build" / name / "sglang" for name in names)
        return tuple(path for path in sorted(found - {self.package}) if self._is_copy(path))

    def _is_copy(self, path: PurePosixPath) -> bool:
        with suppress(Refused):  # a link to the package is no copy of it
            return self.has_folder(path / "srt")
        return False

    def containing(
        self, needle: bytes, among: Iterable[PurePosixPath] | None = None
    ) -> tuple[PurePosixPath, ...]:
        """Search the package's files; see `SourceTree.containing`."""
        if among is not None:
            return tuple(path for path in among if needle in (self.read(path) or b""))
        return tuple(PurePosixPath(name) for name in self.names_containing(needle))

    def names_containing(self, needle: bytes) -> list[str]:
        """Search like `containing`, without the cost of making paths of the names."""
        found = self.repository.holding(needle, self.package_id(), self.package.as_posix())
        above = "" if self.package == PurePosixPath() else f"{self.package}/"
        return [f"{above}{name}" for name in sorted(found)]

    def read(self, path: PurePosixPath) -> bytes | None:
        """Give a file's bytes; see `SourceTree.read`."""
        blob = self.blob(path)
        return None if blob is None else self.repository.content(blob)

    def blob(self, path: PurePosixPath) -> str | None:
        """Give the id of a file's content, None if there is no such file.

        Raises:
            Refused: a link, submodule or folder stands there.
        """
        entry = self._find(path)
        if entry is None:
            return None
        _check(self.label, path.as_posix(), entry[0])
        if entry[0] == _FOLDER:
            raise Refused(f"{path}: is not a regular file")
        return entry[1]

    def read_ahead(self) -> None:
        """Read what any search reads; see `Repository.read_ahead`."""
        self.repository.read_ahead(self.package_id(), self.package.as_posix())

    def package_id(self) -> str:
        """Give the id of the package's folder, which stands for all that is in it."""
        entry = self._find(self.package)
        assert entry is not None
        return entry[1]

    def has_folder(self, path: PurePosixPath) -> bool:
        """Tell whether the revision has a folder."""
        return self._mode(path) == _FOLDER

    def has_file(self, path: PurePosixPath) -> bool:
        """Tell whether the revision has a file."""
        return self._mode(path) not in (None, _FOLDER)

    def _mode(self, path: PurePosixPath) -> int | None:
        entry = self._find(path)
        return entry[0] if entry else None

    def _find(self, path: PurePosixPath) -> Entry | None:
        mode, found = _FOLDER, self.root
        parts = (*self.repository.prefix.parts, *path.parts)
        for place, part in enumerate(parts):
            if mode != _FOLDER:
                _check(self.label, "/".join(parts[:place]), mode)
                return None
            entry = self.repository.folder(found).get(part)
            if entry is None:
                return None
            mode, found = entry
        return mode, found


def open_repository(path: Path) -> Repository:
    """Open the repository that a path is, or stands in, for reading.

    Raises:
        Refused: it is none, or git is missing or refuses it.
    """
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise Refused(f"{path}: {what}; --rev needs a git repository")
    done = _git(path, ["rev-parse", "--show-prefix"])
    if done.returncode:
        said = first_line(done.stderr.decode("utf-8", "replace"))
        raise Refused(f"{path}: --rev needs a git repository: {said}")
    prefix = PurePosixPath(os.fsdecode(done.stdout.removesuffix(b"\n")))
    return Repository(path, prefix, Objects(path))


def _git(
    path: Path, arguments: Sequence[str], *more: str, given: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    command = [*git.COMMAND, *arguments, *more]
    try:
        # Through files: git writes a pipe line by line where it reads lines.
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answers:
            asked.write(given)
            asked.seek(0)
            done = subprocess.run(
                command,
                cwd=path,
                env={**git.environment(), **variables},
                stdin=asked,
                stdout=answers,
                stderr=subprocess.PIPE,
                check=False,
            )
            answers.seek(0)
            said = answers.read()
            return subprocess.CompletedProcess(command, done.returncode, said, done.stderr)
    except OSError as error:
        raise Refused(f"{path}: git cannot be run: {error.strerror}; install git") from error


def _lay_out(folder: Path, address: str, *, sha256: bool) -> None:
    """Write a git directory whose only configuration is where to fetch from."""
    escaped = address.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = [
        "[core]",
        "repositoryFormatVersion = 1",
        "bare = true",
        "[extensions]",
        f"objectFormat = {'sha256' if sha256 else 'sha1'}",
        '[remote "origin"]',
        f'url = "{escaped}"',
        "promisor = true",
        "partialCloneFilter = blob:none",
    ]
    (folder / "refs").mkdir()
    (folder / "HEAD").write_bytes(b"ref: refs/heads/none\n")
    (folder / "config").write_bytes(os.fsencode("\n".join(lines) + "\n"))


def _entries(data: bytes, size: int) -> Iterator[tuple[str, Entry]]:
    start = 0
    while start < len(data):
        end = data.index(b"\0", start)
        mode, _, name = data[start:end].partition(b" ")
        start = end + 1 + size
        yield os.fsdecode(name), (int(mode, 8), data[end + 1 : start].hex())


def _is_searched(folder: str) -> bool:
    return not folder.startswith(".") and folder != "__pycache__"


def _check(label: str, name: str, mode: int) -> None:
    kinds = {_LINK: "symbolic link", _SUBMODULE: "submodule"}
    if mode in kinds:
        raise Refused(
            f"{label}: {name} is a {kinds[mode]} in this revision, which is not followed; "
            "check the revision out and give that folder"
        )
