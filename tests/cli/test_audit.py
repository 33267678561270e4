from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.audit.trees import NPU, memory
from tests.engine.package import run, snapshot
from tests.engine.repositories import commit, git, output
from tests.reports.test_schemas import check, check_sarif

SOURCE = """\
import torch
import torch_npu


def f(x):
    torch_npu.npu_new(x)
    return torch.sum(x)
"""
FINDINGS = [("torch_npu.npu_new", "unknown", 6), ("torch.sum", "native", 7)]


def lay_out(root: Path, source: str = SOURCE) -> Path:
    files = {**memory({NPU: source, "srt/__init__.py": "", "__init__.py": ""}).files}
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def test_findings_exit_one(tmp_path: Path) -> None:
    lay_out(tmp_path)
    before = snapshot(tmp_path)
    done = run("audit", tmp_path)
    assert (done.code, done.stderr) == (1, "")
    said = done.stdout.decode()
    assert "2 calls on the NPU path, 1 native, 1 unknown" in said
    assert f"native   torch.sum          sglang/{NPU}:7 f" in said
    assert "torch.sum: The order in which it adds" in said
    assert snapshot(tmp_path) == before


def test_no_findings_exit_zero(tmp_path: Path) -> None:
    done = run("audit", lay_out(tmp_path, "import torch\n\ntorch.zeros(1)\n"))
    assert done.code == 0
    assert "1 call on the NPU path, 0 native, 0 unknown" in done.stdout.decode()
    assert "torch.zeros" not in done.stdout.decode()
    every = run("audit", tmp_path, "--all")
    assert every.code == 0
    assert "invariant  torch.zeros" in every.stdout.decode()


def test_json(tmp_path: Path) -> None:
    done = run("audit", lay_out(tmp_path), "--format", "json")
    assert done.code == 1
    check(done.report, "document")
    calls = done.report["calls"]
    assert [(c["operator"], c["verdict"], c["site"]["line"]) for c in calls] == FINDINGS
    assert all(c["finding"] and not c["known"] for c in calls)


def test_sarif(tmp_path: Path) -> None:
    done = run("audit", lay_out(tmp_path), "--all", "--format", "sarif")
    check_sarif(done.stdout.decode())
    (sarif,) = json.loads(done.stdout)["runs"]
    assert [each["level"] for each in sarif["results"]] == ["warning", "warning"]


def test_only_news_fail(tmp_path: Path) -> None:
    tree, known = lay_out(tmp_path / "tree"), tmp_path / "known.json"
    written = run("audit", tree, "--baseline", known, "--write-baseline")
    assert written.code == 0
    moved = SOURCE.replace("\n\ndef", "\n\n\n\n\ndef")
    lay_out(tree, moved)
    done = run("audit", tree, "--baseline", known)
    assert done.code == 0
    assert "2 of them in the baseline" in done.stdout.decode()
    lay_out(tree, moved + "    torch.sum(x)\n")
    again = run("audit", tree, "--baseline", known, "--format", "json")
    assert again.code == 1
    assert [c["known"] for c in again.report["calls"]] == [True, True, False]
    notes = run("audit", tree, "--baseline", known, "--format", "sarif").stdout
    levels = [each["level"] for each in json.loads(notes)["runs"][0]["results"]]
    assert levels == ["note", "note", "warning"]
    lay_out(tree, "import torch\n")
    assert run("audit", tree, "--baseline", known).code == 0


def test_revisions_and_archives(tmp_path: Path) -> None:
    tree = lay_out(tmp_path / "tree")
    expected = run("audit", tree, "--format", "json").report["calls"]
    git(tree, "init", "-q")
    commit(tree)
    lay_out(tree, "import torch\n")
    head = output(tree, "rev-parse", "HEAD").strip()
    done = run("audit", tree, "--rev", head, "--format", "json")
    assert (done.code, done.report["calls"]) == (1, expected)
    archive = tmp_path / "sglang.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path, data in memory({NPU: SOURCE, "srt/a.py": "", "__init__.py": ""}).files.items():
            packed.writestr(path.as_posix(), data)
    done = run("audit", archive, "--format", "json")
    assert (done.code, done.report["calls"]) == (1, expected)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--write-baseline"], 2, "--write-baseline needs --baseline FILE"),
        (["--baseline", "TREE/no.json"], 4, "--write-baseline makes a new one"),
        (["--baseline", "TREE/sglang/__init__.py"], 4, "is no baseline of audit"),
        (["--baseline", ""], 2, "FILE is empty"),
        (["--baseline", "TREE/no/a", "--write-baseline"], 4, "cannot be written"),
        (["--model-file", "srt/models/no.py"], 4, "the tree has no such file"),
        (["--format", "junit"], 2, "Invalid value"),
        (["--rev", "HEAD"], 4, ""),
    ],
)
def test_refusals(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    lay_out(tmp_path)
    given = [part.replace("TREE", str(tmp_path)) for part in arguments]
    done = run("audit", tmp_path, *given)
    assert done.code == code
    assert said in done.stderr + done.stdout.decode()


def test_a_tree_that_is_too_old(tmp_path: Path) -> None:
    lay_out(tmp_path)
    (tmp_path / "sglang/srt/launch.py").write_text("")
    done = run("audit", tmp_path)
    assert done.code == 4
    assert "no deterministic inference" in done.stderr


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    done = run("audit", lay_out(tmp_path, "import torch_npu torch\n"))
    assert done.code == 4
    assert f"sglang/{NPU}:1: this Python cannot parse it" in done.stderr
