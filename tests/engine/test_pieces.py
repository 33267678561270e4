"""A file's pieces give the outline that the whole file gives, or none."""

from __future__ import annotations

import random
from pathlib import PurePosixPath

import pytest

from sgl_npu_patch.engine.errors import Refused
from sgl_npu_patch.engine.text.block import Block
from sgl_npu_patch.engine.text.pieces import Pieces, outline_pieces
from sgl_npu_patch.engine.text.source import read_source
from tests.upstream.releases import release_tree

PATH = PurePosixPath("a.py")


def whole(text: str) -> list[Block] | None:
    try:
        return [*read_source(PATH, text.encode()).blocks]
    except Refused:
        return None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        "import a\n\n\ndef f():\n    def g(): 1\n    return g\n\nx: int = 1\n",
        "@a\n@b(\n    1)\nclass A:\n    x = 1\n\n    @c\n    def f(): 1\n",
        (
            "@a\nclass A(B):\n    x = 1\n    def f(): 1\n    y = 2\n    @c\n    def g(self):\n"
            "        class C:\n            def h(): 1\n    z = 3\nw = 4\n"
        ),
        (
            "class A:\n    def f(): 1\n    class B:\n        def g(): 1\n"
            "    async def h(): 1\nif x:\n"
            "    y = 1\nelse:\n    y = 2\n"
        ),
        "class A:\r\n    def f(self):\r\n        pass\r\n    def g(): 1\r\nx = 1\r\n",
        "class A:\n    def f(): 1\n    def g(): 1",
        "try:\n    import a\nexcept ImportError:\n    def a(): 1\n",
        "class Undefined: pass\nclass Other: x = 1\n",
    ],
)
def test_pieces_give_what_the_whole_gives(text: str) -> None:
    known: Pieces = {}
    for _ in range(2):
        assert outline_pieces(text, known) == whole(text)


@pytest.mark.parametrize(
    "text",
    [
        # The second function stands in the module's condition, not in the class.
        "class A:\n    def f(): 1\nif x:\n    a = 1\n    def g(): 1\n",
        # The inner ones stand in methods.
        "class A:\n  def f(self):\n    def g(): 1\n  def k(self):\n    x = 1\n    def h(): 1\n",
        (
            "class A:\n\tdef f(): 1\nclass B:\n  x = 1\n  def k(self):\n    def h(): 1\n    y = 1\n"
            "    def i(): 1\n"
        ),
        'class A:\n    def f(self):\n        """\n    def g(self):\n        """\n    def h(): 1\n',
        'x = """\ndef f():\n    pass\n"""\n',
        "x = (\ndef f(): 1\n)\n",
        "class A:\n        x = 1\n    def f(): 1\n    def g(): 1\n",
        "def f(:\n",
        "@a\nx = 1\n",
    ],
)
def test_what_cannot_be_told_from_pieces_is_not(text: str) -> None:
    assert outline_pieces(text, {}) is None


FILES = (
    "srt/server_args.py",
    "srt/utils/common.py",
    "srt/layers/sampler.py",
    "srt/layers/attention/triton_backend.py",
)


def test_releases() -> None:
    known: Pieces = {}
    for version in ("0.5.3rc2", "0.5.9", "0.5.12.post1", "0.5.23"):
        for name in FILES:
            text = (release_tree(version) / "sglang" / name).read_text(encoding="utf-8")
            assert outline_pieces(text, known) == whole(text)


def test_mutants_of_a_release() -> None:
    """Whatever becomes of a file, its pieces never tell otherwise than the whole."""
    text = (release_tree("0.5.12.post1") / "sglang/srt/layers/sampler.py").read_text("utf-8")
    lines = text.splitlines(keepends=True)
    chosen = random.Random(1)
    known: Pieces = {}
    told = 0
    for _ in range(300):
        mutant = lines.copy()
        for _ in range(chosen.randrange(1, 4)):
            place = chosen.randrange(len(mutant))
            what = chosen.randrange(4)
            if what == 0:
                del mutant[place]
            elif what == 1:
                mutant[place] = (
                    chosen.choice(["    ", "  ", '"""', "(", "if x:\n    "]) + mutant[place]
                )
            elif what == 2:
                mutant.insert(place, mutant[chosen.randrange(len(mutant))])
            else:
                mutant[place] = mutant[place][chosen.randrange(1, 5) :]
        found = outline_pieces("".join(mutant), known)
        if found is not None:
            told += 1
            assert found == whole("".join(mutant))
    assert told > 20
