"""Help, versions, defaults and what holds of the text that every command prints."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sgl_npu_patch import __main__ as entry
from sgl_npu_patch import __version__
from sgl_npu_patch.cli import COMMANDS
from sgl_npu_patch.reports import formats
from tests.engine.package import COMMON, build, run
from tests.engine.repositories import git, output
from tests.matrix.histories import BROKEN, OTHER, history
from tests.upstream.program import ROOT

PACKAGE = ROOT / "src" / "sgl_npu_patch"


def trailing(text: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if line != line.rstrip()]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fills_the_terminal_and_ends_no_line_in_blanks(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [command] if command else []
    widest = []
    for columns in (50, 80, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = run(*arguments, "-h")
        assert (done.code, done.stderr) == (0, "")
        assert trailing(done.stdout) == []
        assert done.stdout == run(*arguments, "--help").stdout
        widest.append(max(map(len, done.stdout.splitlines())))
    assert widest[1] <= 80
    assert widest[0] <= 50 or command in ("verify", "matrix")
    assert command not in ("", "apply", "verify", "matrix") or 80 < widest[2] <= 160


def test_version() -> None:
    said = f"sgl-npu-patch {__version__}\n".encode()
    assert run("-V").stdout == run("--version").stdout == said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_formats(shell: str) -> None:
    # Typer finds out which shell it is from the processes above, of which a test has none.
    words = {"bash": {"COMP_WORDS": "sgl-npu-patch st", "COMP_CWORD": "1"}}
    other = {"_TYPER_COMPLETE_ARGS": "sgl-npu-patch st", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environment = {
        "_SGL_NPU_PATCH_COMPLETE": f"complete_{shell}",
        **words.get(shell, other),
    }
    code = "import sys; sys.argv = ['sgl-npu-patch']; from sgl_npu_patch.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment
    )
    assert "status" in done.stdout
    assert "apply" not in done.stdout


def test_the_current_folder_is_the_tree_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in ("status", "diff", "audit", "apply", "status"):
        named = run(command, ".")
        if command == "apply":
            assert named.code == 0
            continue
        done = run(command)
        assert (done.code, done.stdout) == (named.code, named.stdout)


def test_text_of_every_command_ends_no_line_in_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGL_NPU_PATCH_CACHE", str(tmp_path / "cache"))
    commits = [{}, {OTHER: "x = 1\n"}, {COMMON: BROKEN}]
    repository = history(tmp_path / "repository", commits, {"v1": 0, "v3": 2})
    build(tmp_path / "tree")
    build(tmp_path / "broken", common=BROKEN)
    ranged = ["--good", "v1", "--bad", "v3"]
    tree, broken = str(tmp_path / "tree"), str(tmp_path / "broken")
    commands: list[list[str]] = [
        ["status", tree],
        ["status", broken],
        ["apply", tree, "--check"],
        ["verify", tree, "--static"],
        ["verify", tree, "--static", "--only", "sampler"],
        ["matrix", str(repository), "--revs", "v*"],
        ["matrix", str(repository), "--revs", "v*", "--format", "markdown"],
        ["matrix", "--trees", tree, "--static"],
        ["bisect", str(repository), *ranged],
        ["doctor", tree],
        ["audit", tree, "--all"],
        ["list"],
        ["explain", "npu_ops"],
        ["kit", "-o", str(tmp_path / "kit.py")],
        ["simulate", tree],
        ["apply", tree],
        ["verify", tree, "--static"],
    ]
    assert {*COMMANDS} - {command[0] for command in commands} == {"diff", "fetch"}
    for command in commands:
        for colour in ("0", "1"):
            monkeypatch.setenv("FORCE_COLOR", colour)
            done = run(*command)
            plain = re.sub(rb"\x1b\[[0-9;]*m", b"", done.stdout)
            assert done.stdout
            assert trailing(plain) == [], command


def test_files_are_listed_and_new_ones_are_to_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "a tree")
    git(tmp_path / "a tree", "init", "--quiet")
    git(tmp_path / "a tree", "add", "--all")
    git(tmp_path / "a tree", "commit", "--quiet", "--message", "first")
    monkeypatch.chdir(tmp_path)
    foretold = run("status", "a tree").stdout.decode()
    assert "\nwould change:\n  python/sglang/srt/batch_invariant_ops/" in foretold
    assert "\nwould add:\n  python/sglang/srt/hardware_backend/" in foretold
    assert "git" not in foretold
    said = run("apply", "a tree").stdout.decode()
    assert "\nchanged:\n  python/sglang/srt/batch_invariant_ops/" in said
    assert "\nadded:\n  python/sglang/srt/hardware_backend/" in said
    (line,) = [each for each in said.splitlines() if each.startswith("next: ")]
    command = line.removeprefix("next: ")
    assert command.startswith("git -C 'a tree' add python/")
    subprocess.run(["sh", "-c", command], check=True)
    assert "??" not in output(tmp_path / "a tree", "status", "--porcelain")


@pytest.mark.parametrize(
    ("command", "kind"),
    [("status", "plan"), ("verify", "checks"), ("audit", "audit"), ("bisect", "bisect")],
)
def test_formats_are_those_of_the_registry(command: str, kind: formats.Kind) -> None:
    known = formats.formats_of(kind)
    assert f"--format {'|'.join(known)} " in run(command, "-h").stdout.decode()
    wrong = [name for name in formats.formats_of("matrix") if name not in known]
    more = ["--good", "a", "--bad", "b"] if command == "bisect" else []
    done = run(command, *more, "--format", wrong[0])
    assert (done.code, done.stdout) == (2, b"")
    assert f"'{wrong[0]}' is none of {', '.join(known)}" in " ".join(done.stderr.split())


@pytest.mark.parametrize("name", ["__init__", "__main__", "_version"])
def test_an_older_python_can_read_what_it_imports_first(name: str) -> None:
    ast.parse((PACKAGE / f"{name}.py").read_text("utf-8"), feature_version=(3, 9))


def test_an_older_python_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit) as end:
        entry.main()
    assert end.value.code == 4
    said = capsys.readouterr().err
    assert said == "sgl-npu-patch: Python 3.9 is too old: Python 3.10 or later is needed\n"
