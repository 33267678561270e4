"""Make small git repositories to read revisions from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.engine.trees.repository import open_repository


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    allowed = ["-c", "protocol.file.allow=always"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(
        ["git", *identity, *allowed, *arguments],
        check=True,
        cwd=folder,
        env=environment,
        capture_output=True,
    )


def output(folder: Path, *arguments: str, given: bytes = b"") -> str:
    command = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", *arguments]
    done = subprocess.run(command, check=True, cwd=folder, input=given, capture_output=True)
    return done.stdout.decode().strip()


def commit(root: Path, *options: str) -> str:
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", "next", *options)
    return output(root, "rev-parse", "HEAD")


def partial_clone(root: Path, *options: str) -> Path:
    git(root, "config", "uploadpack.allowFilter", "true")
    git(root, "config", "uploadpack.allowAnySHA1InWant", "true")
    clone = root.parent / "clone"
    filters = options or ("--filter=blob:none",)
    git(root.parent, "clone", "--quiet", "--no-checkout", *filters, root.as_uri(), str(clone))
    return clone


def fake_program(folder: Path) -> Path:
    program = folder / "program"
    program.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{folder}/ran'\nexit 1\n")
    program.chmod(0o755)
    return program


def statuses(folder: Path, revision: str = "HEAD") -> list[str]:
    with open_repository(folder, PROJECT) as opened:
        return [outcome.status for outcome in make_plan(opened.open(revision), SERIES).outcomes]


def refused(folder: Path, revision: str = "HEAD") -> str:
    with pytest.raises(Refused) as caught:
        statuses(folder, revision)
    return str(caught.value)
