"""Compare what is known of SGLang's names and gaps with the published releases, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.codemods.upstream.gaps import GAPS
from sgl_npu_patch.codemods.upstream.modules import EXECUTED
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.codemods.upstream.symbols import SYMBOLS, Form, Symbol
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.view import View
from tests.upstream.releases import RELEASES_NATIVE, RELEASES_PATCHED, release_tree

RELEASES = [*RELEASES_PATCHED, *RELEASES_NATIVE]
_LOOKS = {"function": r"^ *def %s\b", "class": r"^class %s\b", "assignment": r"^%s\b.*="}


def _defines(package: Path, symbol: Symbol, form: Form) -> bool:
    file = package / form.file
    look = _LOOKS[symbol.kind] % form.name
    return file.is_file() and re.search(look, file.read_text("utf-8"), re.MULTILINE) is not None


def _is_in(form: Form | tuple[str, str | None], release: str) -> bool:
    since, until = form if isinstance(form, tuple) else (form.since, form.until)
    last = RELEASES.index(until) if until else len(RELEASES)
    return RELEASES.index(since) <= RELEASES.index(release) <= last


@pytest.mark.parametrize("release", RELEASES)
def test_each_form_is_in_the_releases_that_it_names_and_in_no_other(release: str) -> None:
    tree = open_directory(release_tree(release), PROJECT)
    package = Path(tree.root) / tree.package
    for symbol in (*SYMBOLS.values(), *EXECUTED.values()):
        for form in symbol.forms:
            assert _defines(package, symbol, form) == _is_in(form, release), form


@pytest.mark.parametrize("release", RELEASES_NATIVE)
def test_each_gap_is_in_the_releases_that_it_names_and_in_no_other(release: str) -> None:
    view = View(Overlay(open_directory(release_tree(release), PROJECT)), [])
    found = {(gap, seam) for seam, declared in SERIES.items() for gap in declared.gaps(view)}
    known = {(g.name, g.seam) for g in GAPS.values() if _is_in((g.since, g.until), release)}
    assert found == known
