"""One run over a repository, in every form at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.package import COMMON
from tests.matrix.histories import BROKEN, commit_of, history
from tests.reports.test_matrix_reports import (
    expected,
    of_github,
    of_html,
    of_junit,
    of_markdown,
    of_sarif,
    of_text,
    troubles,
)
from tests.reports.test_schemas import JUNIT, check, check_sarif
from tests.upstream.program import program

READERS = {
    "github": of_github,
    "html": of_html,
    "junit": of_junit,
    "markdown": of_markdown,
    "sarif": of_sarif,
    "text": of_text,
}
GONE = {COMMON: "def elsewhere():\n    return 1\n"}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a history that goes from good over one conflict to another."""
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(tmp_path / "cache"))
    commits = [{}, {COMMON: BROKEN}, GONE]
    return history(tmp_path / "repository", commits, {"t1": 0, "t2": 1, "t3": 2})


def run(
    repository: Path, tmp_path: Path, *more: str
) -> tuple[dict[str, Any], dict[str, Path], int]:
    files = {name: tmp_path / f"report.{name}" for name in (*READERS, "json")}
    reports = [part for name, file in files.items() for part in ("--report", f"{name}={file}")]
    done = program("matrix", repository, "--revs", "t*", "--static", *reports, *more)
    return json.loads(files["json"].read_bytes()), files, done.code


def test_all_say_the_same_and_are_valid(repository: Path, tmp_path: Path) -> None:
    known = str(tmp_path / "statuses.json")
    for more, code in (
        ([], 3),
        (["--baseline", known, "--write-baseline"], 0),
        (["--baseline", known], 0),
    ):
        document, files, ended = run(repository, tmp_path, *more)
        assert ended == code
        assert [result["name"] for result in document["results"]] == ["t1", "t2", "t3"]
        check(document, "matrix")
        check_sarif(files["sarif"].read_text(encoding="utf-8"))
        JUNIT.validate(str(files["junit"]))
        for name, reader in READERS.items():
            wanted = troubles(document) if name in ("github", "sarif") else expected(document)
            assert reader(files[name].read_text(encoding="utf-8")) == wanted, name


def test_news_are_in_every_form(repository: Path, tmp_path: Path) -> None:
    known = tmp_path / "statuses.json"
    run(repository, tmp_path, "--baseline", str(known), "--write-baseline")
    content = json.loads(known.read_text(encoding="utf-8"))
    content["trees"]["t2"]["statuses"] |= {"device_dispatch": "pending"}
    known.write_text(json.dumps(content), encoding="utf-8")
    document, files, code = run(repository, tmp_path, "--baseline", str(known))
    assert code == 1
    check(document, "matrix")
    commit = commit_of(repository, "t2")
    (change,) = document["changes"]
    assert (change["name"], change["seam"], change["commit"]) == ("t2", "device_dispatch", commit)
    for name in ("text", "markdown", "github", "html"):
        assert commit in files[name].read_text(encoding="utf-8"), name
    for name in ("junit", "github"):
        assert "device_dispatch on t2: pending before" in files[name].read_text(encoding="utf-8")


def test_bisect_is_described_too(repository: Path) -> None:
    arguments = ["--good", "t1", "--bad", "t3", "--format", "json"]
    check(json.loads(program("bisect", repository, *arguments).stdout), "bisect")
