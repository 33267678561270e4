from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sgl_npu_patch.engine import apply, commit, plan
from tests.engine.package import ARGUMENTS, COMMON, MODE, build, contents, run, snapshot
from tests.upstream.program import ROOT

PROGRAM = [sys.executable, "-W", "error", "-m", "sgl_npu_patch"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Usage"),
        (["nothing"], "No such command"),
        (["explain"], "Missing argument"),
        (["apply", "TREE", "--nothing"], "No such option"),
        (["apply", "TREE", "TREE"], "unexpected extra argument"),
        (["apply", "TREE", "--only"], "requires an argument"),
        (["apply", "TREE", "--only", "nothing"], "no such seam: nothing; seams are "),
        (["apply", "TREE", "--skip", "nothing"], "no such seam: nothing; seams are "),
        (["diff", "TREE", "--only", "backend_lists"], "backend_lists needs radix_cache"),
        (["status", "TREE", "--skip", "npu_ops"], "batch_invariant needs npu_ops"),
        (["apply", "TREE", "--skip", "device_dispatch"], "needs device_dispatch on this tree"),
        (["apply", "TREE", "--only", "npu_ops", "--skip", "npu_ops"], "leave no seam"),
        (["status", "TREE", "--format", "sarif"], "'sarif' is none of text, json"),
    ],
)
def test_usage(tmp_path: Path, arguments: list[str], said: str) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)
    done = run(*(str(tmp_path) if part == "TREE" else part for part in arguments))
    assert done.code == 2
    assert said in done.stderr + done.stdout.decode()
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["apply", "--help"]])
def test_help_and_version(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout


def prepend(data: bytes) -> Callable[[Path], object]:
    return lambda package: (package / COMMON).write_bytes(data + (package / COMMON).read_bytes())


@pytest.mark.parametrize(
    "command", [["apply"], ["apply", "--format", "json"], ["status"], ["diff"]]
)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(shutil.rmtree, "not a tree of SGLang", id="empty"),
        pytest.param(
            lambda package: shutil.rmtree(package.parents[1]), "does not exist", id="missing"
        ),
        pytest.param(
            lambda package: (
                package.parents[1].rename(package.parents[2] / "x")
                and package.parents[1].write_bytes(b"")
            ),
            "is not a directory",
            id="a file",
        ),
        pytest.param(
            lambda package: (package / ARGUMENTS).write_text("x = 1\n"),
            "no deterministic inference",
            id="too old",
        ),
        pytest.param(prepend(b"# \xff\n"), "common.py: cannot be decoded", id="undecodable"),
        pytest.param(prepend(b"# \0\n"), "null bytes", id="null byte"),
        pytest.param(prepend(b"def (\n"), "common.py:1: does not parse", id="syntax error"),
        pytest.param(
            prepend(b"x = " + b"(" * 2000 + b")" * 2000 + b"\n"), "does not parse", id="nesting"
        ),
        pytest.param(
            lambda package: (package / "srt/x.py").symlink_to("nowhere"),
            "srt/x.py: is a symbolic link that leads nowhere",
            id="dangling link",
        ),
        pytest.param(
            lambda package: os.mkfifo(package / "srt/x.py"), "is not a regular file", id="pipe"
        ),
    ],
)
def test_bad_tree_is_refused(
    tmp_path: Path, command: list[str], spoil: Callable[[Path], object], said: str
) -> None:
    tree = tmp_path / "tree"
    spoil(build(tree))
    before = snapshot(tmp_path)
    done = run(*command, tree)
    assert (done.code, done.stdout) == (4, b"")
    assert done.stderr.startswith("sgl-npu-patch: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "add",
    [
        pytest.param(lambda srt: (srt / "x.py").write_bytes(b"def ("), id="syntax error"),
        pytest.param(lambda srt: (srt / "x.py").write_bytes(b"# \xff\0"), id="no text"),
        pytest.param(lambda srt: (srt / "x.py").mkdir(), id="folder named x.py"),
        pytest.param(lambda srt: (srt / "x.py").write_bytes(b""), id="empty file"),
        pytest.param(lambda srt: (srt / "x.py").write_bytes(b"# " + b"a" * 10**7), id="huge line"),
        pytest.param(lambda srt: (srt / "x").symlink_to(".."), id="circular folder link"),
        pytest.param(lambda srt: (srt / ".#x.py").symlink_to("me@here.1"), id="editor's lock"),
    ],
)
def test_unrelated_file_does_not_matter(tmp_path: Path, add: Callable[[Path], object]) -> None:
    package = build(tmp_path)
    add(package / "srt")
    done = run("apply", tmp_path)
    assert (done.code, done.stderr) == (0, "")


def test_empty_argument_is_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("apply", "")
    assert done.code in (2, 4)
    assert done.stdout == b""


@pytest.mark.parametrize("part", ["python/sglang/srt/hardware_backend", MODE])
def test_what_stands_in_the_way_of_a_new_file(tmp_path: Path, part: str) -> None:
    package = build(tmp_path)
    if part == MODE:
        (package / "srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py").mkdir(parents=True)
    else:
        (tmp_path / part).touch()
    before = snapshot(tmp_path)
    done = run("apply", tmp_path)
    assert done.code == 4
    assert "npu/batch_invariant_ops/" in done.stderr
    assert snapshot(tmp_path) == before


def test_file_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = build(tmp_path)
    real = commit.commit

    def late(*arguments: object) -> None:
        (package / COMMON).write_bytes(b"# somebody else\n")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "commit", late)
    done = run("apply", tmp_path)
    assert (done.code, done.stdout) == (4, b"")
    assert "common.py: changed while it was being patched; nothing was changed" in done.stderr
    assert (package / COMMON).read_bytes() == b"# somebody else\n"
    assert b"npu_ops" not in (package / MODE).read_bytes()


@pytest.mark.parametrize(
    ("module", "where"), [(apply, "make_plan"), (apply, "prove"), (plan, "make_plan")]
)
def test_bug_of_ours_asks_for_a_report(
    tmp_path: Path, module: ModuleType, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    before = snapshot(tmp_path)

    def broken(*_: object) -> None:
        raise AssertionError("broken on purpose")

    monkeypatch.setattr(module, where, broken)
    done = run("apply", tmp_path)
    assert (done.code, done.stdout) == (70, b"")
    assert "broken on purpose" in done.stderr
    assert "this is a bug of sgl-npu-patch" in done.stderr
    assert "please report it" in done.stderr
    assert snapshot(tmp_path) == before


# Everything is imported, and warm, before the rights are given up: the interpreter itself may be
# out of an unprivileged user's reach.
UNPRIVILEGED = """\
import os, sys
from tests.engine.package import run

warm, *arguments = sys.argv[1:]
assert run("apply", warm).code == 0
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
done = run(*arguments)
sys.stdout.buffer.write(done.stdout)
sys.stderr.write(done.stderr)
sys.exit(done.code)
"""


@pytest.fixture
def reachable() -> Iterator[Path]:
    """Give a folder that an unprivileged user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        yield root
        for path in [*root.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)


@pytest.mark.parametrize(
    ("place", "mode", "said"),
    [
        ("", 0o000, "cannot be read: Permission denied"),
        ("", 0o444, "cannot be read: Permission denied"),
        ("python", 0o000, "cannot be read: Permission denied"),
        ("python/sglang/srt", 0o000, "cannot be "),
        ("python/sglang/srt/utils", 0o000, "srt/utils: cannot be listed: Permission denied"),
        (f"python/sglang/{COMMON}", 0o000, "common.py: cannot be read: Permission denied"),
        (f"python/sglang/{COMMON}", 0o444, "common.py: is read-only; nothing was changed"),
        ("python/sglang/srt/utils", 0o555, "common.py: cannot be written: Permission denied"),
        ("python/sglang/srt", 0o555, "hardware_backend/"),
    ],
)
def test_missing_permission(reachable: Path, place: str, mode: int, said: str) -> None:
    tree = reachable / "tree"
    build(tree)
    build(reachable / "warm")
    before = snapshot(tree)
    if os.getuid() == 0:
        for path in [tree, *tree.rglob("*")]:
            os.chown(path, 65534, 65534)
    (tree / place).chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(reachable / "warm"), "apply", str(tree)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    (tree / place).chmod(before[place][1] if place in before else 0o755)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert contents(tree) == {k: v[0] for k, v in before.items() if v[0] != "folder"}


def start(
    *arguments: str | Path, environment: dict[str, str] | None = None, redirected: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Run another process, with redirections after its arguments if any are given."""
    command = [*PROGRAM, *map(str, arguments)]
    if redirected:
        command = ["bash", "-c", f'set -o pipefail; "$@" {redirected}', "bash", *command]
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "TREE"],
        ["status", "TREE", "--format", "json"],
        ["diff", "TREE"],
        ["list"],
        ["explain", "sampler"],
        ["--help"],
    ],
)
def test_reader_that_leaves_is_no_error(tmp_path: Path, arguments: list[str]) -> None:
    build(tmp_path)
    chosen = [str(tmp_path) if part == "TREE" else part for part in arguments]
    for redirected in ("| true", "| head -c 1"):
        done = start(*chosen, redirected=redirected)
        assert (done.returncode, done.stderr) == (0, b"")


def test_reader_that_leaves_hides_no_result(tmp_path: Path) -> None:
    build(tmp_path)
    assert start("apply", tmp_path, "--check", "--diff", redirected="| true").returncode == 1
    assert start("apply", tmp_path, "--diff", redirected="| true").returncode == 0
    assert run("apply", tmp_path, "--check").code == 0
    build(tmp_path, common="def is_npu():\n    return False\n")
    assert start("diff", tmp_path, redirected="2>&1 | true").returncode == 3


@pytest.mark.parametrize("command", [["status"], ["diff"], ["apply", "--format", "json"]])
def test_full_disk_behind_stdout(tmp_path: Path, command: list[str]) -> None:
    build(tmp_path)
    done = start(*command, tmp_path, redirected="> /dev/full")
    assert done.returncode == 4
    assert done.stderr == (
        b"sgl-npu-patch: the report cannot be written: No space left on device\n"
    )


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_streams(tmp_path: Path, closed: str) -> None:
    build(tmp_path)
    done = start("apply", tmp_path, redirected=closed)
    assert (done.returncode, done.stderr) == (0, b"")
    assert run("apply", tmp_path, "--check").code == 0
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize(
    "environment",
    [
        {"COLUMNS": "20"},
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONUTF8": "1"},
    ],
    ids=str,
)
def test_environment_does_not_change_the_report(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    tree = tmp_path / "caf\u00e9"
    build(tree)
    commands: tuple[list[str | Path], ...] = (
        ["status", tree],
        ["status", tree, "--format", "json"],
    )
    for command in commands:
        plain = run(*command)
        done = start(*command, environment=environment)
        assert (done.returncode, done.stderr) == (0, b"")
        if "json" in command:
            assert json.loads(done.stdout)["outcomes"] == plain.report["outcomes"]
        else:
            assert done.stdout == plain.stdout


def test_encoding_without_a_place_for_the_path(tmp_path: Path) -> None:
    tree = tmp_path / "caf\u00e9"
    build(tree)
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    text = start("status", tree, environment=ascii_only)
    assert (text.returncode, text.stderr) == (0, b"")
    assert rb"caf\xe9: would change" in text.stdout
    document = start("status", tree, "--format", "json", environment=ascii_only)
    assert json.loads(document.stdout)["tree"]["path"] == str(tree)


def on_a_terminal(*arguments: str | Path, **environment: str) -> str:
    """Run with stdout on a terminal of 60 columns and return what it shows."""
    master, slave = pty.openpty()
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdout=slave,
        cwd=ROOT,
        env={**inherited, "TERM": "xterm", "COLUMNS": "60", **environment},
    ) as process:
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 4096):
                shown += part
        except OSError:
            pass  # how Linux says that the other end is closed
        finally:
            os.close(master)
    assert process.returncode == 0
    return shown.decode()


def test_colour_on_a_terminal_only(tmp_path: Path) -> None:
    build(tmp_path)
    assert "\x1b[33mpending" in on_a_terminal("status", tmp_path)
    assert "\x1b[33m" not in on_a_terminal("status", tmp_path, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal("status", tmp_path, TERM="dumb")
    plain = run("status", tmp_path).stdout
    assert b"\x1b" not in plain
    for environment, colour in (({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "0"}, False)):
        forced = start("status", tmp_path, environment=environment).stdout
        assert (b"\x1b[33mpending" in forced) == colour
        assert re.sub(rb"\x1b\[[0-9;]*m", b"", forced) == plain
    shown = on_a_terminal("status", tmp_path, "--format", "json")
    assert json.loads(shown)["schema"] == 1


def test_narrow_terminal(tmp_path: Path) -> None:
    build(tmp_path)
    shown = on_a_terminal("status", tmp_path, COLUMNS="20", NO_COLOR="1")
    assert "launch" in shown
