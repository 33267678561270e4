"""Check that an edit keeps every byte around it, and looks like what is around it."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import pytest

from tests.codemods.case import GOLDENS, golden
from tests.helpers import SAMPLER, SERVER_ARGS, judge, shape

CHOICES = b'DETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["fa3"]'
UNWRAPPED = {
    "attention_comment",
    "backend_lists",
    "batch_invariant",
    "device_dispatch",
    "sampling_backend",
}
"""The seams that insert no statement of several lines, which are folded by width."""


@pytest.mark.parametrize(
    "shaped",
    [
        pytest.param(lambda s: s.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(lambda s: b"\xef\xbb\xbf" + s, id="BOM"),
        pytest.param(lambda s: b"# coding: latin-1\n# \xe9\n" + s, id="latin-1 cookie"),
        pytest.param(lambda s: s.rstrip(b"\n"), id="no final newline"),
    ],
)
@pytest.mark.parametrize(("seam", "name"), GOLDENS)
def test_keeps_every_other_byte(seam: str, name: str, shaped: Callable[[bytes], bytes]) -> None:
    wanted = {path: shaped(data) for path, data in golden(seam, name).items()}
    before = shape(name) | {path: shaped(shape(name)[path]) for path in wanted}
    outcome, after = judge(seam, before)
    assert outcome.status == "pending"
    assert {path: after[path] for path in wanted} == wanted


@pytest.mark.parametrize("seam", sorted(UNWRAPPED))
def test_indents_by_tabs_in_a_file_of_tabs(seam: str) -> None:
    wanted = {path: _tabbed(data) for path, data in golden(seam, "0.5.12").items()}
    source = shape("0.5.12")
    _, after = judge(seam, source | {path: _tabbed(source[path]) for path in wanted})
    assert {path: after[path] for path in wanted} == wanted


def _tabbed(data: bytes) -> bytes:
    return data.replace(b"    ", b"\t")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"\xef\xbb\xbf" + CHOICES + b"\n", id="a BOM before the list itself"),
        pytest.param(CHOICES, id="a list at the end of the file"),
        pytest.param(CHOICES + b"\x0c\n", id="a form feed behind the list"),
        pytest.param(
            b'# coding: latin-1\nname = "\xe9"\n' + CHOICES + b"  # \xfc\n", id="latin-1 around it"
        ),
    ],
)
def test_keeps_the_bytes_around_a_list(before: bytes) -> None:
    _, after = judge("backend_lists", shape("0.5.12") | {SERVER_ARGS: before})
    assert after[SERVER_ARGS] == before.replace(b'"fa3"]', b'"fa3", "ascend"]')


def test_takes_the_files_newline_where_a_long_list_has_none() -> None:
    first = b"x" * 30
    head = b"import os\r\n\r\n" + CHOICES.partition(b'"')[0]
    before = head + b'"' + first + b'", "fa3"]'
    wanted = head + b'\r\n    "' + first + b'",\r\n    "fa3",\r\n    "ascend",\r\n]'
    _, after = judge("backend_lists", shape("0.5.12") | {SERVER_ARGS: before})
    assert after[SERVER_ARGS] == wanted


def test_upstreams_draws_get_what_older_trees_get() -> None:
    """But for what hands the seed and the positions down, which upstream's form does itself."""

    def inserted(name: str) -> set[str]:
        before, after = shape(name)[SAMPLER].decode(), golden("sampler", name)[SAMPLER].decode()
        lines = difflib.ndiff(before.splitlines(), after.splitlines())
        return {line[2:] for line in lines if line.startswith("+ ")}

    handed = ("positions", "sampling_seed", "@torch.compile", "def ", "    ):")
    ours = {line for line in inserted("0.5.12") if not any(text in line for text in handed)}
    assert len(ours) > 20
    assert ours - {""} <= inserted("0.5.13")
