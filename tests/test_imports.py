"""No import leads in a circle: not between modules, not between folders, not inside functions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAME = "sgl_npu_patch"
FOLDERS = {
    NAME: ROOT / "src" / NAME,
    f"{NAME}.codemods": ROOT / "codemods",
    f"{NAME}.npu_ops": ROOT / "npu_ops",
    f"{NAME}.templates": ROOT / "templates",
}
"""Where the modules stand whose installed names begin so."""

Graph = Mapping[str, set[str]]


def module_of(name: str, path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join([name, *(parts[:-1] if parts[-1] == "__init__" else parts)])


MODULES = {
    module_of(name, path.relative_to(folder)): path
    for name, folder in FOLDERS.items()
    for path in sorted(folder.rglob("*.py"))
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield what is imported anywhere: in functions, for types, or by `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def between_modules() -> Graph:
    return {
        name: {*imported(ast.parse(path.read_text("utf-8")))}.intersection(MODULES) - {name}
        for name, path in MODULES.items()
    }


def between_parts() -> Graph:
    """Take together what stands in one folder below the package; a module there is a part."""
    graph: dict[str, set[str]] = {}
    for name, others in between_modules().items():
        parts = {part_of(other) for other in others}
        graph.setdefault(part_of(name), set()).update(parts - {part_of(name)})
    return graph


def part_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("graph", [between_modules, between_parts], ids=["modules", "parts"])
def test_no_import_leads_in_a_circle(graph: Callable[[], Graph]) -> None:
    assert len(graph()) > 10
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" imports\n".join(reversed(error.args[1])))


@pytest.mark.parametrize(
    ("part", "allowed"),
    [
        ("engine", {"_version"}),
        ("templates", {"engine"}),
        ("npu_ops", set()),
        ("codemods", {"engine", "npu_ops", "templates"}),
        ("simulator", {"codemods"}),
    ],
)
def test_what_stands_below_knows_nothing_of_what_stands_above(part: str, allowed: set[str]) -> None:
    assert between_parts()[f"{NAME}.{part}"] <= {f"{NAME}.{each}" for each in allowed}


def test_only_the_program_knows_the_commands() -> None:
    knowing = {part for part, others in between_parts().items() if f"{NAME}.commands" in others}
    assert knowing == {f"{NAME}.cli"}
