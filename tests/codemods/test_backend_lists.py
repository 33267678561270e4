"""Check how "ascend" is added to the list of attention backends, and where it is not."""

from __future__ import annotations

import sys

import pytest

from tests.helpers import (
    ATTENTION,
    SERVER_ARGS,
    attention,
    check_already,
    check_applied,
    check_conflict,
    check_edited,
    check_upstream,
    judge,
    server_args,
)

NAME = "DETERMINISTIC_ATTENTION_BACKEND_CHOICES"
SEAM = "backend_lists"
OURS = "srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py"


def _args(choices: str) -> str:
    return server_args(choices=choices)


def _ours() -> bytes:
    _, _, files = judge("npu_ops")
    return files[OURS]


TRANSFORMS = [
    pytest.param('["fa3", "triton"]', '["fa3", "triton", "ascend"]', id="one line"),
    pytest.param("['fa3', 'triton']", "['fa3', 'triton', 'ascend']", id="single quotes stay"),
    pytest.param('["fa3"]', '["fa3", "ascend"]', id="a single entry"),
    pytest.param('["fa3", ]', '["fa3", "ascend", ]', id="a trailing comma on one line stays"),
    pytest.param('( "fa3", "triton" )', '( "fa3", "triton", "ascend" )', id="a tuple"),
    pytest.param('("fa3",)', '("fa3", "ascend",)', id="a tuple of one"),
    pytest.param('"fa3", "triton"', '"fa3", "triton", "ascend"', id="a tuple without parentheses"),
    pytest.param('{"fa3", "triton"}', '{"fa3", "triton", "ascend"}', id="a set"),
    pytest.param('(["fa3", "triton"])', '(["fa3", "triton", "ascend"])', id="parenthesised"),
    pytest.param('["fa3", "tri" "ton"]', '["fa3", "tri" "ton", "ascend"]', id="joined literals"),
    pytest.param('["fa3", r"triton"]', '["fa3", r"triton", "ascend"]', id="a raw literal"),
    pytest.param(
        '[\n    "fa3",\n    "triton",\n]',
        '[\n    "fa3",\n    "triton",\n    "ascend",\n]',
        id="one entry a line",
    ),
    pytest.param(
        '[\n    "fa3",\n    "triton"\n]',
        '[\n    "fa3",\n    "triton",\n    "ascend"\n]',
        id="one entry a line without a trailing comma",
    ),
    pytest.param(
        '[\n    "fa3", "triton"\n]',
        '[\n    "fa3", "triton", "ascend"\n]',
        id="entries hugged on a line of their own",
    ),
    pytest.param(
        '["fa3",\n "triton"]',
        '["fa3",\n "triton",\n "ascend"]',
        id="entries aligned with the bracket",
    ),
    pytest.param(
        '[\n\t"fa3",\n\t"triton",\n]',
        '[\n\t"fa3",\n\t"triton",\n\t"ascend",\n]',
        id="tabs stay tabs",
    ),
    pytest.param(
        '[\n    "fa3",  # hopper\n    "triton",  # all\n]',
        '[\n    "fa3",  # hopper\n    "triton",  # all\n    "ascend",\n]',
        id="a comment stays behind its own entry",
    ),
    pytest.param(
        '[\n    "fa3",  # hopper\n    "triton"  # all\n]',
        '[\n    "fa3",  # hopper\n    "triton",  # all\n    "ascend"\n]',
        id="a comment stays behind the last entry that has no comma",
    ),
    pytest.param(
        '[\n    "fa3",  # hopper\n]',
        '[\n    "fa3",  # hopper\n    "ascend",\n]',
        id="the comment of a single entry is not lost",
    ),
    pytest.param(
        '[  # by name\n    "fa3",\n]',
        '[  # by name\n    "fa3",\n    "ascend",\n]',
        id="a comment behind the bracket is not doubled",
    ),
    pytest.param(
        '[\n    # hopper\n    "fa3",\n    # all\n    "triton",\n]',
        '[\n    # hopper\n    "fa3",\n    # all\n    "triton",\n    "ascend",\n]',
        id="a comment above an entry is not doubled",
    ),
    pytest.param(
        '[\n    "fa3",\n    "triton",\n    # plugins add theirs\n]',
        '[\n    "fa3",\n    "triton",\n    # plugins add theirs\n    "ascend",\n]',
        id="a comment above the bracket stays where it is",
    ),
    pytest.param(
        '[\n    "fa3",\n\n    "triton",\n]',
        '[\n    "fa3",\n\n    "triton",\n    "ascend",\n]',
        id="an empty line between entries is not doubled",
    ),
]


@pytest.mark.parametrize(("before", "after"), TRANSFORMS)
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(NAME, id="plain"),
        pytest.param(f"{NAME}: list[str]", id="annotated"),
    ],
)
def test_appends_in_the_layout_of_the_list(target: str, before: str, after: str) -> None:
    choices = f"# What is deterministic\n{target} = {{}}\n"
    check_applied(
        SEAM,
        {SERVER_ARGS: _args(choices.format(before))},
        {SERVER_ARGS: _args(choices.format(after))},
    )


def _one_line(width: int, left: str = "[", right: str = "]") -> str:
    head, tail = f'{NAME} = {left}"', f'", "fa3"{right}'
    return f"{head}{'x' * (width - len(head) - len(tail))}{tail}\n"


@pytest.mark.parametrize(("left", "right"), ["[]", "()", "{}"])
def test_stays_on_one_line_up_to_88_columns(left: str, right: str) -> None:
    before = _one_line(78, left, right)
    after = before.replace(f'"fa3"{right}', f'"fa3", "ascend"{right}')
    assert len(after.rstrip("\n")) == 88
    check_applied(SEAM, {SERVER_ARGS: _args(before)}, {SERVER_ARGS: _args(after)})


@pytest.mark.parametrize(("left", "right"), ["[]", "()", "{}"])
def test_goes_one_entry_a_line_where_88_columns_would_be_exceeded(left: str, right: str) -> None:
    before = _one_line(79, left, right)
    first = before.split('"')[1]
    after = f'{NAME} = {left}\n    "{first}",\n    "fa3",\n    "ascend",\n{right}\n'
    check_applied(SEAM, {SERVER_ARGS: _args(before)}, {SERVER_ARGS: _args(after)})


def test_leaves_a_line_that_was_too_long_before_on_one_line() -> None:
    before = _one_line(100)
    after = before.replace('"fa3"]', '"fa3", "ascend"]')
    check_applied(SEAM, {SERVER_ARGS: _args(before)}, {SERVER_ARGS: _args(after)})


def test_does_not_count_the_comment_above_into_the_width() -> None:
    before = f'# {"so " * 20}\n{NAME} = ["fa3"]\n'
    after = before.replace('"fa3"]', '"fa3", "ascend"]')
    check_applied(SEAM, {SERVER_ARGS: _args(before)}, {SERVER_ARGS: _args(after)})


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(_args(f'{NAME} = ["fa3"]\n').replace("\n", "\r\n").encode(), id="CRLF"),
        pytest.param(b"\xef\xbb\xbf" + _args(f'{NAME} = ["fa3"]\n').encode(), id="BOM"),
        pytest.param(f'\ufeff{NAME} = ["fa3"]\n'.encode(), id="BOM before the list itself"),
        pytest.param(f'{NAME} = ["fa3"]'.encode(), id="no final newline"),
        pytest.param(f'{NAME} = ["fa3"]\x0c\n'.encode(), id="form feed"),
        pytest.param(
            f'# -*- coding: latin-1 -*-\nname = "\xe9"\n{NAME} = ["fa3"]  # \xfc\n'.encode(
                "latin-1"
            ),
            id="latin-1 cookie",
        ),
        pytest.param(
            f'word = "日本"; tail = """\n"""\n{NAME} = ["fa3"]\n'.encode(), id="wide characters"
        ),
    ],
)
def test_keeps_every_other_byte(before: bytes) -> None:
    after = before.replace(b'"fa3"]', b'"fa3", "ascend"]', 1)
    check_applied(SEAM, {SERVER_ARGS: before}, {SERVER_ARGS: after})


def test_takes_the_files_newline_where_the_list_has_none() -> None:
    long = _one_line(80).rstrip("\n")
    before = f"import os\r\n\r\n{long}"
    first = long.split('"')[1]
    after = f'import os\r\n\r\n{NAME} = [\r\n    "{first}",\r\n    "fa3",\r\n    "ascend",\r\n]'
    check_applied(SEAM, {SERVER_ARGS: before}, {SERVER_ARGS: after})


def test_finds_the_list_where_it_moved() -> None:
    moved = f'{NAME} = [\n    "fa3",\n]\n'
    importing = _args(f"from sglang.srt.arg_groups.choices import {NAME}\n")
    check_applied(
        SEAM,
        {SERVER_ARGS: importing, "srt/arg_groups/choices.py": moved},
        {"srt/arg_groups/choices.py": moved.replace('"fa3",', '"fa3",\n    "ascend",')},
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f'"""{NAME} = ["x"]"""\n', id="in a string"),
        pytest.param(f'# {NAME} = ["x"]\n', id="in a comment"),
        pytest.param(f'def f():\n    {NAME} = ["x"]\n', id="a local of a function"),
        pytest.param(f'class C:\n    {NAME} = ["x"]\n', id="an attribute of a class"),
        pytest.param(f'{NAME}_OF_OTHERS = ["x"]\n', id="a longer name"),
        pytest.param(f'args.{NAME} = ["x"]\n', id="an attribute of another object"),
        pytest.param(f'# {NAME}.append("ascend")\n', id="an append in a comment"),
        pytest.param(f"{NAME}.extend(choices)\n", id="the helper that extends it by anything"),
    ],
)
def test_a_look_alike_in_another_module_is_left_alone(text: str) -> None:
    choices = f'{NAME} = ["fa3"]\n'
    check_applied(
        SEAM,
        {SERVER_ARGS: _args(choices), "srt/other.py": text},
        {SERVER_ARGS: _args(choices.replace('"fa3"', '"fa3", "ascend"'))},
    )


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this interpreter parses t-strings")
def test_newer_syntax_elsewhere_in_the_file_does_not_matter() -> None:
    newer = "\n\ndef unrelated(name):\n    return " + "t" + '"{name}"\n'
    before = _args(f'{NAME} = ["fa3"]\n') + newer
    after = before.replace('"fa3"]', '"fa3", "ascend"]', 1)
    check_applied(SEAM, {SERVER_ARGS: before}, {SERVER_ARGS: after})


def test_an_entry_that_upstream_made_is_upstream() -> None:
    check_upstream(SEAM, {SERVER_ARGS: _args(f'{NAME} = ["ascend", "fa3"]\n')})


def test_an_entry_beside_our_vendored_module_is_ours() -> None:
    check_already(SEAM, {SERVER_ARGS: _args(f'{NAME} = ["fa3", "ascend"]\n'), OURS: _ours()})


@pytest.mark.parametrize(
    ("choices", "match"),
    [
        pytest.param("", "found none", id="there is none"),
        pytest.param(f'{NAME} = ["a"]\n{NAME} = ["b"]\n', "2 definitions", id="assigned twice"),
        pytest.param(f'{NAME} = ["a"]\n{NAME} += ["b"]\n', "2 definitions", id="added to"),
        pytest.param(f"{NAME} = []\n", "literal list", id="an empty list shows no quotes"),
        pytest.param(f'{NAME} = sorted(["a"])\n', "literal list", id="made by a call"),
        pytest.param(f"{NAME} = [fa3, triton]\n", "literal list", id="names, not strings"),
        pytest.param(f'{NAME} = ["a", *more]\n', "literal list", id="a starred entry"),
        pytest.param(f'{NAME} = [b"a"]\n', "literal list", id="bytes"),
        pytest.param(f'{NAME} = [f"{{a}}"]\n', "literal list", id="an f-string"),
        pytest.param(f'{NAME} = ["a"] + ["b"]\n', "literal list", id="a sum"),
        pytest.param(f'{NAME} = [c for c in "abc"]\n', "literal list", id="a comprehension"),
        pytest.param(
            f'{NAME} = ["ascend", "ascend"]\n', "at most once", id='"ascend" twice already'
        ),
        pytest.param(f'{NAME} = OTHER = ["a"]\n', "literal list", id="two names for one list"),
        pytest.param(
            f'{NAME}, OTHER = "a", "b"\n', "literal list", id="unpacked from a tuple of strings"
        ),
        pytest.param(f'{NAME} = ["a"]; x = 1\n', "a line of its own", id="two statements a line"),
        pytest.param(f'if False:\n    {NAME} = ["a"]\n', "under no condition", id="in dead code"),
        pytest.param(
            f'try:\n    {NAME} = ["a"]\nexcept ValueError:\n    pass\n',
            "under no condition",
            id="in a try",
        ),
        pytest.param(
            f'{NAME} = ["a"]\n{NAME}.append("ascend")\n',
            "in the list itself",
            id='"ascend" is appended further down',
        ),
    ],
)
def test_is_a_conflict(choices: str, match: str) -> None:
    check_conflict(SEAM, {SERVER_ARGS: _args(choices)}, match=match)


def test_a_conflict_points_at_the_line() -> None:
    choices = f'# one\n# two\n{NAME} = sorted(["a"])\n'
    check_conflict(SEAM, {SERVER_ARGS: _args(choices)}, match="by hand", at="sorted(")


def test_a_list_doubled_in_another_module_is_a_conflict_that_names_both() -> None:
    outcome = check_conflict(
        SEAM, {"srt/fork_args.py": f'{NAME} = ["fa3"]\n'}, match="2 definitions"
    )
    assert {site.path.name for site in outcome.sites} == {"server_args.py", "fork_args.py"}


def test_a_plugin_that_appends_the_entry_itself_is_a_conflict() -> None:
    plugin = f'import sglang.srt.server_args as a\n\na.{NAME}.append("ascend")\n'
    check_conflict(SEAM, {"srt/plugin.py": plugin}, match="in the list itself", at=".append(")


def test_the_nearest_name_is_shown_and_not_taken() -> None:
    choices = 'DETERMINISTIC_ATTENTION_BACKEND_CHOICE = ["fa3"]\n'
    check_conflict(SEAM, {SERVER_ARGS: _args(choices)}, match="a similar name is not taken")


def test_other_conflicts_do_not_matter_here() -> None:
    check_edited(SEAM, {ATTENTION: attention("out = None\n")}, SERVER_ARGS, '"triton", "ascend"]')
