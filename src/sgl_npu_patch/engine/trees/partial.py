"""Fetch the files that a partial clone lacks, in one request.

It is done under the user's own configuration: no more than the address is taken from that of the
repository.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.trees import git

_PROTOCOLS = "file:git:http:https:ssh"
_SETTINGS = r"^(extensions\.partialclone|remote\..*\.(promisor|url))$"


class PartialClone:
    """Fetch missing files of one repository, if it has an origin that promises them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: list[str] | None = None

    def fetch(self, blobs: Sequence[str], tree: str | None) -> bool:
        """Fetch those of the blobs that are missing; git itself would make a request for each.

        Returns whether there were any.

        Args:
            tree: a folder that holds all of them.

        Raises:
            Refused: they cannot be fetched.
        """
        addresses = self._addresses()
        if not addresses:
            return False
        listed = git.run(
            self._path,
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
            self._fetch(missing, addresses[0])
        return bool(missing)

    def _addresses(self) -> list[str]:
        if self._known is None:
            self._known = _promisors(self._path)
        return self._known

    def _fetch(self, blobs: Sequence[str], address: str) -> None:
        where = git.run(self._path, ["rev-parse", "--git-path", "objects"])
        objects = self._path / os.fsdecode(where.stdout.removesuffix(b"\n"))
        with tempfile.TemporaryDirectory(prefix="sgl-npu-patch-") as scratch:
            _lay_out(Path(scratch), address, sha256=len(blobs[0]) == 64)
            done = git.run(
                git.work_tree(self._path) or self._path,
                ["-c", "fetch.negotiationAlgorithm=noop", "-c", "gc.auto=0", "fetch", "--quiet",
                 "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no",
                 "--filter=blob:none", "--stdin", "origin"],
                given="".join(f"{blob}\n" for blob in blobs).encode(),
                GIT_DIR=scratch,
                GIT_OBJECT_DIRECTORY=str(objects.resolve()),
                GIT_ALLOW_PROTOCOL=os.environ.get("GIT_ALLOW_PROTOCOL", _PROTOCOLS),
            )  # fmt: skip
        if done.returncode:
            files = "1 file" if len(blobs) == 1 else f"{len(blobs)} files"
            raise Refused(
                f"{self._path}: this partial clone lacks {files}, which cannot be "
                f"fetched ({git.first_line(done.stderr)}); fetch with git, for instance by a "
                "checkout, or use a clone without --filter"
            )


def _promisors(path: Path) -> list[str]:
    """List the addresses of the remotes that promise missing objects, the first to ask first."""
    done = git.run(path, ["config", "--null", "--get-regexp", _SETTINGS])
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
