"""What docs/ci.md and the pre-commit hook tell other people to run exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from sgl_npu_patch import __version__
from sgl_npu_patch.cli import make_app
from sgl_npu_patch.reports.formats import formats_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
GITHUB_TAGS, GITLAB, GITHUB_PATCHED, PRE_COMMIT = BLOCKS


def scripts(content: Any) -> Iterator[str]:
    """Give every text of a job: scripts are among them."""
    if isinstance(content, str):
        yield content
    elif content:
        for part in content.values() if isinstance(content, dict) else content:
            yield from scripts(part)


def calls(text: str) -> Iterator[list[str]]:
    """Give the arguments of each call of the program in a shell script."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(("sgl-npu-patch ", "$ sgl-npu-patch ")):
            yield shlex.split(line.removeprefix("$ ").partition(" > ")[0])[1:]


CALLS = [
    *(call for block in BLOCKS for text in scripts(block) for call in calls(text)),
    *calls(PAGE),
    *([*shlex.split(hook["entry"])[1:], *hook["args"]] for hook in HOOKS),
]


def test_calls_are_found() -> None:
    assert [call[0] for call in CALLS].count("matrix") >= 3
    assert {call[0] for call in CALLS} == {"apply", "matrix", "verify"}


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_commands_and_options_exist(call: list[str]) -> None:
    command = typer.main.get_group(make_app()).commands[call[0]]
    # Parses as the program does, and runs nothing.
    context = command.make_context(call[0], call[1:])
    for report in context.params.get("report") or ():
        assert report.partition("=")[0] in formats_of("matrix")


@pytest.mark.parametrize(
    ("content", "schema"),
    [
        (GITHUB_TAGS, "vendor.github-workflows"),
        (GITHUB_PATCHED, "vendor.github-workflows"),
        (GITLAB, "vendor.gitlab-ci"),
    ],
)
def test_jobs_are_valid(content: dict[Any, Any], schema: str, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    # YAML 1.1 takes `on` for a truth value.
    file.write_text(json.dumps({"on" if k is True else k: v for k, v in content.items()}))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_scripts_are_shell() -> None:
    (gitlab,) = GITLAB.values()
    steps = [
        step["run"]
        for job in GITHUB_TAGS["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    for script in (*steps, *gitlab["script"], *gitlab["after_script"]):
        done = subprocess.run(
            ["bash", "-n"], check=False, input=script, capture_output=True, text=True
        )
        assert done.stderr == "", script


def test_steps_use_the_files_that_are_written() -> None:
    for content in (GITHUB_TAGS, GITLAB):
        texts = [*scripts(content)]
        (call,) = (call for text in texts for call in calls(text))
        written = {arg.partition("=")[2] for arg in call if re.match(r"[a-z]+=", arg)}
        others = " ".join(text for text in texts if not text.startswith("sgl-npu-patch"))
        assert [file for file in written if file not in others] == []
        assert "matrix.html" in written


def test_the_hook_is_what_pre_commit_takes() -> None:
    (hook,) = HOOKS
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert hook["language"] == "python"
    # Files are no arguments of the program.
    assert hook["pass_filenames"] is False
    (repository,) = PRE_COMMIT["repos"]
    assert [each["id"] for each in repository["hooks"]] == [hook["id"]]
    assert repository["rev"] == f"v{__version__}"
