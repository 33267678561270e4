from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from packaging.version import Version

import sgl_npu_patch
from sgl_npu_patch import __version__
from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.gaps import GAPS
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.text.template import older_forms, template

ROOT = Path(__file__).parents[1]

# Where the folders of the repository are in the installed package.
INSTALLED_AS = {
    "src/sgl_npu_patch": "sgl_npu_patch",
    "codemods": "sgl_npu_patch/codemods",
    "npu_ops": "sgl_npu_patch/npu_ops",
    "templates": "sgl_npu_patch/templates",
}
COMMANDS = (
    "apply",
    "status",
    "diff",
    "list",
    "explain",
    "fetch",
    "verify",
    "matrix",
    "bisect",
    "audit",
    "doctor",
    "kit",
    "simulate",
)

# The pages about something else than a command.
PAGES = (
    "acceptance",
    "ci",
    "cost",
    "launch",
    "limits",
    "reports",
    "seams",
    "server",
    "torch-npu",
)

SEAMS = tuple(SERIES)


LIST_WHAT_IS_INSTALLED = """\
from importlib.resources import files
import sgl_npu_patch.codemods, sgl_npu_patch.npu_ops
print(sgl_npu_patch.codemods.__file__)
print(*sgl_npu_patch.codemods.SERIES)
names = [file.name for file in files("sgl_npu_patch.templates").iterdir()]
print(*sorted(name for name in names if name.endswith(".tmpl")))
"""


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)


def git_files(*folders: str) -> list[PurePosixPath]:
    """Return the files that git has or would add, of the whole repository or of folders of it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    done = subprocess.run([*command, *folders], check=True, capture_output=True, cwd=ROOT)
    paths = [PurePosixPath(name) for name in done.stdout.decode().split("\0") if name]
    return [path for path in paths if (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from git's files alone, elsewhere, so that no stale build folder helps."""
    source = tmp_path_factory.mktemp("source")
    for path in git_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)
    into = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), str(source)]
    done = run(command, source)
    assert done.returncode == 0, done.stderr
    (built,) = into.iterdir()
    return built


def wheel_files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not is_metadata(name)]


def is_metadata(name: str) -> bool:
    return name.partition("/")[0].endswith(".dist-info")


def test_wheel_holds_gits_files_and_no_others(wheel: Path) -> None:
    expected = [
        f"{package}/{path.relative_to(folder)}"
        for folder, package in INSTALLED_AS.items()
        for path in git_files(folder)
    ]
    assert sorted(wheel_files(wheel)) == sorted(expected)


def test_wheel_brings_one_top_level_name(wheel: Path) -> None:
    assert {name.split("/")[0] for name in wheel_files(wheel)} == {"sgl_npu_patch"}


def test_wheel_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name.split("/", 1)[1]: archive.read(name).decode()
            for name in archive.namelist()
            if is_metadata(name)
        }
    assert f"\nVersion: {sgl_npu_patch.__version__}\n" in texts["METADATA"]
    assert "\nLicense-Expression: Apache-2.0\n" in texts["METADATA"]
    assert texts["licenses/LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")
    # Only operator packages for the chip carry that import name; a name on an index is another's.
    assert not re.search(r"Requires-Dist: batch.invariant.ops", texts["METADATA"], re.IGNORECASE)
    scripts = configparser.ConfigParser()
    scripts.read_string(texts["entry_points.txt"])
    assert dict(scripts["console_scripts"]) == {"sgl-npu-patch": "sgl_npu_patch.__main__:main"}


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_installed_program_lists_the_series(wheel: Path, tmp_path: Path, editable: bool) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    (site,) = environment.glob("[Ll]ib/**/site-packages")
    # Dependencies and the build tool are those of this process, behind what is installed here.
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "others.pth").write_text("\n".join(others), encoding="utf-8")
    what = ["--editable", str(ROOT)] if editable else [str(wheel)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    options = ["--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    installed = run([*pip, *options, "--ignore-installed", *what], tmp_path)
    assert installed.returncode == 0, installed.stderr
    names = {path.name for path in site.iterdir()}
    assert not names & {"codemods", "npu_ops", "templates", "tests", "benchmarks", "src"}
    assert not [name for name in names if name.startswith(("torch", "batch_inv", "sgl_kernel"))]
    done = run([str(python), "-c", LIST_WHAT_IS_INSTALLED], tmp_path)
    assert done.returncode == 0, done.stderr
    place, series, templates = done.stdout.splitlines()
    assert Path(place).is_relative_to(ROOT if editable else environment)
    assert tuple(series.split()) == SEAMS
    assert templates.split() == sorted(path.name for path in (ROOT / "templates").glob("*.tmpl"))


def test_series_and_codemod_files_are_the_same() -> None:
    files = {path.stem for path in git_files("codemods") if path.match("codemods/*.py")}
    assert files - {"__init__"} == set(SEAMS)
    assert len(SEAMS) == len(set(SEAMS))


def test_series_and_codemod_tests_are_the_same() -> None:
    paths = [path.relative_to("tests/codemods") for path in git_files("tests/codemods")]
    assert {path.parts[0] for path in paths if len(path.parts) > 1} - {"shapes"} == set(SEAMS)


def test_series_and_docs_are_the_same() -> None:
    text = (ROOT / "docs" / "seams.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([a-z_]+)$", text, re.MULTILINE) == list(SERIES)
    assert re.findall(r"^### ([a-z_0-9]+)$", text, re.MULTILINE) == list(GAPS)


def test_every_template_is_used_and_every_used_template_exists() -> None:
    sources = [
        (ROOT / path).read_text(encoding="utf-8")
        for path in git_files("codemods")
        if path.suffix == ".py"
    ]
    rendered = {n for source in sources for n in re.findall(r"\brender\(\s*\"(\w+)\"", source)}
    literals = {n for source in sources for n in re.findall(r"\"(\w+)\"", source)}
    templates = {path.stem for path in git_files("templates") if path.suffix == ".tmpl"}
    assert rendered <= {name for name in templates if "@" not in name} <= literals


def test_older_forms_of_templates_can_be_brought_up_to_date() -> None:
    """Each has a form of today, from another text, whose placeholders it can fill."""
    for form in older_forms(PROJECT.templates):
        name, _, version = form.partition("@")
        today, older = (template(PROJECT.templates, each) for each in (name, form))
        assert today.template != older.template
        assert Version(version) < Version(__version__)
        named = [{m["named"] for m in t.pattern.finditer(t.template)} for t in (today, older)]
        assert named[0] <= named[1]


def test_every_command_has_its_page() -> None:
    pages = {path.stem for path in git_files("docs") if path.match("docs/*.md")}
    assert pages == {*COMMANDS, *PAGES}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [command for command in COMMANDS if f"(docs/{command}.md)" not in readme]


def test_changelog_names_every_seam_and_command() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not [name for name in (*SEAMS, *COMMANDS) if f"`{name}`" not in text]


def test_version_is_read_without_importing_anything() -> None:
    source = (ROOT / "src" / "sgl_npu_patch" / "_version.py").read_text(encoding="utf-8")
    assert "import" not in re.sub(r'""".*?"""', "", source, flags=re.DOTALL)
