"""The hint of a conflict about a definition that is gone."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine.errors import AnchorError
from sgl_npu_patch.engine.overlay import Overlay
from sgl_npu_patch.engine.text.fingerprint import Fingerprint, Hint, fingerprint_of
from sgl_npu_patch.engine.trees.directory import open_directory
from sgl_npu_patch.engine.view import View
from tests.engine.package import build

OTHER = PurePosixPath("sglang/srt/other.py")
OPEN = '''\
    @cached
    def open_valve(self, pipe: Pipe, *, slowly=False) -> bool:
        """Open it."""
        # As the manual says.
        if slowly:
            pipe.turn(1)
        return pipe.turn(9)
'''
FORM = fingerprint_of(OPEN)
assert FORM is not None
HINT = Hint(("close_valve",), frozenset({FORM}))
CLOSE = "def close_valve(pipe):\n    release(pipe)\n\n\n"


def nearest(root: Path, source: str, hint: Hint = HINT) -> AnchorError:
    build(root, "sglang")
    (root / OTHER).write_text(source, encoding="utf-8")
    view = View(Overlay(open_directory(root, PROJECT)), [])
    with pytest.raises(AnchorError) as caught:
        view.find_function("open_valve", hint=lambda: hint)
    return caught.value


def test_the_same_body_comes_before_similar_names(tmp_path: Path) -> None:
    source = (
        f"{CLOSE}def open_valves(pipe):\n    pass\n\n\n"
        "def release(tube, tap, calmly=False):\n    return tap\n\n\n"
        "async def let_flow(self, tube, *, calmly=False):\n"
        "    if calmly:\n        tube.twist(1)\n    return tube.twist(9)\n"
    )
    error = nearest(tmp_path, source)
    assert error.nearest == f"{OTHER}:13 let_flow (the same body under another name is not taken)"
    assert (
        error.action == "restore the name open_valve and its uses, if let_flow is the same function"
    )


def test_the_same_parameters_come_before_similar_names(tmp_path: Path) -> None:
    source = (
        f"{CLOSE}def open_valves(pipe):\n    pass\n\n\n"
        "def flow(self, pipe, *, slowly=False):\n    return pipe.turn(8)\n"
    )
    assert "flow (one with the same parameters is not taken)" in nearest(tmp_path, source).nearest


def test_the_others_are_never_taken_for_it(tmp_path: Path) -> None:
    close = "def close_valve(self, pipe, *, slowly=False):\n    return pipe.turn(8)\n"
    assert nearest(tmp_path, close).nearest == ""


def test_what_the_others_use_needs_less_of_the_name(tmp_path: Path) -> None:
    source = f"{CLOSE}def release_valve(pipe):\n    pass\n\n\ndef release(pipe):\n    pass\n"
    alone = nearest(tmp_path, source, Hint())
    assert "close_valve (a similar name" in alone.nearest
    used = nearest(tmp_path, source.replace("release(", "open_it("))
    assert "open_it (a similar name is not taken)" in used.nearest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pipe", "tube"),
        ("    @cached\n", ""),
        (": Pipe", ""),
        (" -> bool", ""),
        ('        """Open it."""\n', ""),
        ("# As the manual says.", "# Otherwise."),
        ("pipe.turn(9)", "pipe.turn(\n            9,\n        )"),
        ("    def", "    async def"),
    ],
)
def test_names_and_layout_do_not_count(old: str, new: str) -> None:
    found = fingerprint_of(OPEN.replace(old, new))
    assert found is not None
    assert FORM is not None
    assert found.body == FORM.body


@pytest.mark.parametrize(
    ("old", "new"), [("turn(1)", "turn(2)"), ("False", "True"), ("if slowly", "if pipe")]
)
def test_all_else_counts(old: str, new: str) -> None:
    found = fingerprint_of(OPEN.replace(old, new))
    assert found is not None
    assert FORM is not None
    assert found.body != FORM.body


def test_only_functions_that_parse_have_a_fingerprint() -> None:
    assert fingerprint_of("x = 1\n") is None
    assert fingerprint_of("def f(:\n") is None
    assert fingerprint_of("def f(a, /, *b, c): pass\n") == Fingerprint("9a2a82cbda0a", "a b c")
