"""The engine patches a package that has nothing to do with SGLang, by a series of its own."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import libcst as cst
import pytest

from sgl_npu_patch._version import __version__
from sgl_npu_patch.engine.apply import apply, apply_to_wheel, plan, wheel_target
from sgl_npu_patch.engine.cst import edit, read
from sgl_npu_patch.engine.errors import AnchorError, Conflicting, Refused, TooOld
from sgl_npu_patch.engine.plan import Plan
from sgl_npu_patch.engine.project import Project
from sgl_npu_patch.engine.record import line_of
from sgl_npu_patch.engine.seam import Seam, Target
from sgl_npu_patch.engine.text.template import template
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.trees.open import open_tree
from sgl_npu_patch.engine.trees.wheel import open_wheel
from tests.engine.repositories import commit, git

ENGINE = Path(edit.__file__).parents[1]

WEATHER = Project(
    name="Weather",
    package="weather",
    core="stations",
    layouts=("lib/weather", "weather"),
    marker="measure_rain",
    too_old="nothing in {package} measures rain; take Weather 2",
    vendor_folder=PurePosixPath("stations/added"),
    vendored=("limits",),
    modules="weather_patch_modules",
    templates="weather_patch_templates",
    header="# Added by weather-patch {version}",
    stems=(b"measure_",),
    wheel_suffix="limited",
)
SOURCES = {
    "lib/weather/__init__.py": "",
    "lib/weather/stations/rain.py": (
        "def measure_rain(gauge):\n    level = gauge.read()\n    return level\n"
    ),
}
RAIN = "lib/weather/stations/rain.py"
LIMITS = "lib/weather/stations/added/limits.py"
INSERTED = (
    "def measure_rain(gauge):\n    level = gauge.read()\n    level = limits.clip(level)\n"
    "    return level\n"
)
OLDER = INSERTED.replace("clip", "cut")


def clip(node: cst.CSTNode) -> cst.CSTNode:
    """Insert the template behind the statement that reads the gauge."""
    assert isinstance(node, cst.FunctionDef)
    anchor = read.only(
        [step for step in read.steps(node) if read.calls(step.node, "read")],
        lambda count: AnchorError(
            sought="gauge.read()",
            expected="exactly one",
            found=str(count),
            action="read the gauge once",
        ),
    )
    text = template(WEATHER.templates, "clip").substitute(level="level")
    return edit.place(node, anchor, text, mark="limits", after=True)


SERIES: Mapping[str, Seam] = {
    "rain": Seam(
        targets=lambda view: [Target(view.find_function("measure_rain"), clip)],
        needs=("limits",),
    ),
    "limits": Seam(vendors=("limits",)),
}


@pytest.fixture(scope="module", autouse=True)
def own_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the vendored module and the templates where Python finds them."""
    folder = tmp_path_factory.mktemp("own")
    write(
        folder,
        {
            "weather_patch_modules/__init__.py": "",
            "weather_patch_modules/limits.py": "def clip(level):\n    return min(level, 9)\n",
            "weather_patch_templates/__init__.py": "",
            "weather_patch_templates/clip.tmpl": "$level = limits.clip($level)\n",
            "weather_patch_templates/clip@0.0.1.tmpl": "$level = limits.cut($level)\n",
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", SOURCES)


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def patched(root: Path) -> Plan:
    tree = open_directory(root, WEATHER)
    return apply(tree, plan(tree, SERIES))


def statuses(made: Plan) -> dict[str, str]:
    return {outcome.seam: outcome.status for outcome in made.outcomes}


def test_both_seams_are_applied_and_then_settled(root: Path) -> None:
    assert statuses(patched(root)) == {"rain": "applied", "limits": "applied"}
    assert (root / RAIN).read_text(encoding="utf-8") == INSERTED
    header, checksum, body = (root / LIMITS).read_text(encoding="utf-8").split("\n", 2)
    assert header == f"# Added by weather-patch {__version__}"
    assert checksum.startswith("# sha256 of what follows: ")
    assert body.startswith("def clip")
    again = patched(root)
    assert statuses(again) == {"rain": "already", "limits": "already"}
    assert again.changes.changes == ()


def test_what_an_older_version_inserted_is_brought_up_to_date(root: Path) -> None:
    patched(root)
    write(root, {RAIN: OLDER})
    renewed = patched(root)
    assert [(o.status, o.outdated) for o in renewed.outcomes] == [
        ("applied", True),
        ("already", False),
    ]
    assert (root / RAIN).read_text(encoding="utf-8") == INSERTED


def test_a_revision_is_judged_without_a_checkout(root: Path) -> None:
    git(root, "init", "--quiet")
    commit(root)
    write(root, {RAIN: "not Python"})
    with open_tree(root, WEATHER, "HEAD") as tree:
        assert statuses(plan(tree, SERIES)) == {"rain": "pending", "limits": "pending"}


def test_a_wheel_gets_the_projects_suffix(tmp_path: Path) -> None:
    info = "weather-2.0.dist-info"
    files = {name.removeprefix("lib/"): text.encode() for name, text in SOURCES.items()}
    files[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: weather\nVersion: 2.0\n"
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [line_of(name, data) for name, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*rows, line_of(f"{info}/RECORD")]).encode()
    wheel = tmp_path / "weather-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    tree = open_wheel(wheel, WEATHER)
    made = plan(tree, SERIES)
    target = wheel_target(tree, made, tmp_path / "out")
    assert target == tmp_path / "out" / "weather-2.0+limited-py3-none-any.whl"
    apply_to_wheel(tree, made, target)
    with zipfile.ZipFile(target) as archive:
        assert archive.read(RAIN.removeprefix("lib/")).decode() == INSERTED


def test_a_tree_without_the_marker_is_too_old(root: Path) -> None:
    write(root, {RAIN: "def measure_wind(vane):\n    return vane.read()\n"})
    with pytest.raises(TooOld, match="nothing in lib/weather measures rain; take Weather 2"):
        patched(root)


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weather").mkdir()
    wanted = re.escape(
        "not a tree of Weather: looked for the package as lib/weather/stations, weather/stations"
    )
    with pytest.raises(Refused, match=wanted):
        open_directory(tmp_path, WEATHER)


def test_a_conflict_names_what_was_sought_and_writes_nothing(root: Path) -> None:
    write(
        root,
        {
            RAIN: SOURCES[RAIN].replace(
                "gauge.read()", "gauge.read() + gauge.read()\n    gauge.read()"
            )
        },
    )
    tree = open_directory(root, WEATHER)
    made = plan(tree, SERIES)
    assert statuses(made) == {"rain": "conflict", "limits": "pending"}
    (conflict,) = made.conflicts
    assert conflict.evidence is not None
    assert (conflict.evidence.sought, conflict.evidence.found) == ("gauge.read()", "2")
    with pytest.raises(Conflicting, match="rain"):
        apply(tree, made)
    assert not (root / LIMITS).exists()


def test_an_edited_vendored_file_stops_the_seam_that_needs_it(root: Path) -> None:
    patched(root)
    edited = (root / LIMITS).read_text(encoding="utf-8").replace("level, 9", "level, 8")
    write(root, {LIMITS: edited, RAIN: SOURCES[RAIN]})
    tree = open_directory(root, WEATHER)
    made = plan(tree, SERIES)
    assert statuses(made) == {"rain": "conflict", "limits": "conflict"}
    evidence = made.outcomes[1].evidence
    assert evidence is not None
    assert "return min(level, 8)" in evidence.found


def test_the_engine_names_no_project() -> None:
    known = re.compile(r"sglang|\bsrt\b|\bnpu|ascend|deterministic_", re.IGNORECASE)
    for path in sorted(ENGINE.rglob("*.py")):
        # The name of this tool begins with those of two.
        text = re.sub("sgl[-_]npu[-_]patch", "", path.read_text(encoding="utf-8").lower())
        assert not known.findall(text), path
