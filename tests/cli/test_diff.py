from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_npu_patch.engine.model import ChangeSet, FileChange
from sgl_npu_patch.reports.diff import render_diff
from tests.engine.package import ADDED, CHANGED, WRITTEN, build, contents, run, snapshot
from tests.engine.repositories import git

TOOLS = {
    "git": ["git", "apply", "--whitespace=nowarn"],
    "patch": ["patch", "-p1", "-F0", "--silent", "--binary"],
}


def feed(tool: str, folder: Path, diff: bytes) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(
        TOOLS[tool], check=False, cwd=folder, input=diff, capture_output=True, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_nothing_but_the_diff_on_stdout(tmp_path: Path) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)
    done = run("diff", tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith(b"diff --git a/python/sglang/srt/batch_invariant_ops/")
    assert done.stdout.count(b"\ndiff --git ") == len(WRITTEN) - 1
    assert done.stdout.count(b"\nnew file mode 100644\n--- /dev/null\n+++ b/") == len(ADDED)
    assert done.stdout.count(b"\n@@ -0,0 +1,") == len(ADDED)
    assert snapshot(tmp_path) == before


def test_nothing_to_change_is_an_empty_diff(tmp_path: Path) -> None:
    build(tmp_path)
    run("apply", tmp_path)
    assert run("diff", tmp_path) == run("diff", tmp_path)
    assert (run("diff", tmp_path).stdout, run("diff", tmp_path).code) == (b"", 0)


def test_conflict_is_told_on_stderr(tmp_path: Path) -> None:
    build(tmp_path, common="def is_npu():\n    return False\n")
    done = run("diff", tmp_path)
    assert (done.code, done.stdout) == (3, b"")
    assert "conflict in device_dispatch" in done.stderr


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "name", ["plain", "two words", "caf\u00e9", "quo\"te'", "tab\there", "a\\b", "caf\udce9"]
)
@pytest.mark.parametrize("below", ["", "python", "python/sglang"])
def test_diff_is_relative_to_the_work_tree(
    tmp_path: Path, tool: str, name: str, below: str
) -> None:
    root = tmp_path / "root"
    build(root / name)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first")
    before = snapshot(root / name)
    diff = run("diff", root / name / below).stdout
    feed(tool, root, diff)
    fed = contents(root)
    git(root, "stash", "--quiet", "--include-untracked")
    assert contents(root / name).keys() == {
        key for key, value in before.items() if value[0] not in ("folder", "link")
    }
    assert run("apply", root / name).code == 0
    assert contents(root) == fed


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("layout", ["python/sglang", "sglang", "."])
def test_diff_is_relative_to_path_without_a_work_tree(
    tmp_path: Path, tool: str, layout: str
) -> None:
    build(tmp_path / "fed", layout)
    build(tmp_path / "applied", layout)
    feed(tool, tmp_path / "fed", run("diff", tmp_path / "fed").stdout)
    assert run("apply", tmp_path / "applied").code == 0
    assert contents(tmp_path / "fed") == contents(tmp_path / "applied")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("form", ["CRLF", "no final newline", "odd separators"])
def test_bytes_of_odd_files(tmp_path: Path, tool: str, form: str) -> None:
    for name in ("fed", "applied"):
        package = build(tmp_path / name)
        for each in CHANGED:
            data = (package / each).read_bytes()
            if form == "CRLF":
                data = data.replace(b"\n", b"\r\n")
            elif form == "odd separators":
                data += b"s = '''\x0c \r \xc2\x85 \xe2\x80\xa8'''\r\n"
            else:
                data = data.rstrip(b"\n")
            (package / each).write_bytes(data)
    feed(tool, tmp_path / "fed", run("diff", tmp_path / "fed").stdout)
    assert run("apply", tmp_path / "applied").code == 0
    assert contents(tmp_path / "fed") == contents(tmp_path / "applied")


lines = st.sampled_from([b"a\n", b"b\n", b"-- a\n", b"++ b\n", b"\n", b" \n", b"c\r\n", b"d\re\n"])
texts = st.builds(
    lambda parts, end: b"".join(parts) + end,
    st.lists(lines, max_size=14),
    st.sampled_from([b"", b"", b"x", b"\x0c", b"\r"]),
)


@given(before=texts, after=texts)
@settings(max_examples=40, deadline=None)
def test_any_change_survives_both_tools(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes
) -> None:
    if before == after:
        return
    change = FileChange(PurePosixPath("m.py"), before, after)
    diff = render_diff(ChangeSet((change,)), PurePosixPath())
    for tool in TOOLS:
        folder = tmp_path_factory.mktemp("change")
        (folder / "m.py").write_bytes(before)
        feed(tool, folder, diff)
        left = (folder / "m.py").read_bytes() if (folder / "m.py").exists() else b""
        assert left == after, tool
