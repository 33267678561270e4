"""What the documentation shows is what the program prints."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.kit.program import SERVER, TESTS
from sgl_npu_patch.reports.formats import Kind, formats_of
from tests.upstream.releases import RELEASES_NATIVE, release_tree
from tests.upstream.test_statuses import expected_gaps

ROOT = Path(__file__).resolve().parents[2]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


def test_the_seams_page_is_the_docstrings() -> None:
    assert GENERATOR.SEAMS.read_text(encoding="utf-8") == GENERATOR.render_seams()


LONG = ("audit.md", "verify.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else ())
        for page in GENERATOR.pages()
    ],
    ids=lambda page: page.name,
)
def test_the_output_shown_is_printed_by_the_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert GENERATOR.rerun(text, release_tree(GENERATOR.RELEASE)) == text


def test_the_picture_shows_what_the_program_prints() -> None:
    """Its words are compared; how they are drawn is up to the version of rich."""
    picture = GENERATOR.PICTURE.read_text(encoding="utf-8")
    again = GENERATOR.render_picture(release_tree(GENERATOR.RELEASE))
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    assert words.findall(picture) == words.findall(again) != []
    assert "http" not in re.sub(r"<!--.*?-->|xmlns=\S+", "", picture)


def test_the_python_shown_patches_a_tree(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shutil.copytree(release_tree(GENERATOR.RELEASE), tmp_path / "sglang")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert ast.literal_eval(done.stdout) == dict.fromkeys(SERIES, "applied")


def test_the_launch_command_stands_in_one_page_and_the_kit_prints_it() -> None:
    page = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (ASCEND_USE_FIA=.*?)\n```", page, re.DOTALL | re.MULTILINE)
    assert command.replace("\\\n", "").split() == SERVER.split()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [(page.name, line) for page in pages for line in page.read_text("utf-8").splitlines()]
    # A server on the simulated NPU is started in another way.
    real = [(name, line) for name, line in lines if "simulate" not in line]
    assert {name for name, line in real if "launch_server" in line} == {"launch.md", "kit.md"}
    acceptance = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
    assert [test for test in TESTS if test not in acceptance] == []


def test_the_gaps_of_native_releases_are_counted() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (most,) = re.findall(r"with up to (\d+) \[gaps\]", text)
    assert int(most) == max(len(expected_gaps(version)) for version in RELEASES_NATIVE)


def _formats_in(page: str) -> list[str]:
    """List the formats of a table of formats, of the option's row, or of the text."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if table := re.search(r"^\| format \|.*\n.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        return re.findall(r"^\| `(\w+)`", table[1], re.MULTILINE)
    if option := re.search(r"^\| `--format (.*?) \|", text, re.MULTILINE):
        return re.findall(r"\w+", option[1])
    return ["text", *dict.fromkeys(re.findall(r"`--format (\w+)", text))]


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("apply.md", "plan"),
        ("status.md", "plan"),
        ("verify.md", "checks"),
        ("audit.md", "audit"),
        ("reports.md", "matrix"),
        ("bisect.md", "bisect"),
        ("doctor.md", "machine"),
        ("list.md", "series"),
    ],
)
def test_a_page_lists_the_formats_of_its_command(page: str, kind: Kind) -> None:
    assert sorted(_formats_in(page)) == sorted(formats_of(kind))


def test_at_least_one_page_shows_output() -> None:
    pages = GENERATOR.pages()
    assert any("<!-- run -->" in page.read_text(encoding="utf-8") for page in pages)


def test_the_cost_shown_is_counted_by_the_benchmark() -> None:
    command = [sys.executable, "-m", "benchmarks.bench_cost"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    assert f"```text\n{done.stdout}```\n" in page
