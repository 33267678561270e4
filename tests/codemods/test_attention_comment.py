"""Check that one claim goes and that everything which looks like it stays."""

from __future__ import annotations

import pytest

from tests.helpers import (
    ATTENTION,
    LOOPING_BRANCH,
    PAGED_BRANCH,
    attention,
    check_applied,
    check_conflict,
    check_not_needed,
)

SEAM = "attention_comment"
CLAIM = "FIA supports multi-bs in the current version of CANN"
REST = PAGED_BRANCH.split("\n", 1)[1]


def test_removes_the_claim_and_nothing_else() -> None:
    outcome = check_applied(SEAM, {}, {ATTENTION: attention(REST)})
    assert [site.line for site in outcome.sites] == [9]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(f"'{CLAIM}'\n{REST}", REST, id="single quotes"),
        pytest.param(f'"""\n{CLAIM}\n"""\n{REST}', REST, id="on lines of its own"),
        pytest.param(f'"{CLAIM[:20]}" "{CLAIM[20:]}"\n{REST}', REST, id="joined literals"),
        pytest.param(f'{REST}"""{CLAIM}"""\n', REST, id="the last statement"),
        pytest.param(
            f'# one call for all\n"""{CLAIM}"""\n{REST}',
            f"# one call for all\n{REST}",
            id="a comment above it stays",
        ),
        pytest.param(
            f'{REST}# done\n"""{CLAIM}"""\n', f"{REST}# done\n", id="a comment above the last stays"
        ),
        pytest.param(
            f'x = 1\n\n"""{CLAIM}"""\n\n# why\n{REST}',
            f"x = 1\n\n\n# why\n{REST}",
            id="empty lines around it stay",
        ),
    ],
)
def test_whatever_its_form(before: str, after: str) -> None:
    check_applied(SEAM, {ATTENTION: attention(before)}, {ATTENTION: attention(after)})


def test_keeps_crlf_tabs_and_bom() -> None:
    def shaped(branch: str) -> dict[str, bytes]:
        text = attention(branch).replace("    ", "\t").replace("\n", "\r\n")
        return {ATTENTION: b"\xef\xbb\xbf" + text.encode()}

    check_applied(SEAM, shaped(PAGED_BRANCH), shaped(REST))


def test_finds_the_backend_where_it_was_before() -> None:
    path = "srt/layers/attention/ascend_backend.py"
    check_applied(SEAM, {ATTENTION: None, path: attention()}, {path: attention(REST)})


@pytest.mark.parametrize(
    "branch",
    [
        pytest.param(REST, id="no claim"),
        pytest.param(LOOPING_BRANCH, id="the other statement, about a later version"),
        pytest.param(f"# {CLAIM}\n{REST}", id="a comment"),
        pytest.param(f'text = "{CLAIM}"\n{REST}', id="an assigned string"),
        pytest.param(f'log("{CLAIM}")\n{REST}', id="an argument"),
        pytest.param(f'"{CLAIM}, mostly"\n{REST}', id="a longer claim"),
        pytest.param(f'f"{CLAIM}"\n{REST}', id="an f-string, which is computed"),
        pytest.param(f'b"{CLAIM}"\n{REST}', id="bytes"),
        pytest.param(
            f'if self._can_use_tnd(q):\n    """{CLAIM}"""\n    {REST}',
            id="under another test, as from 0.5.14 on",
        ),
    ],
)
def test_leaves_what_only_looks_like_it(branch: str) -> None:
    check_not_needed(SEAM, {ATTENTION: attention(branch)}, match="no such claim")


def test_leaves_the_same_claim_in_other_branches() -> None:
    elsewhere = f'"""{CLAIM}"""\nif is_cp_mode:\n    if self.use_fia:\n        """{CLAIM}"""\n'
    check_not_needed(SEAM, {ATTENTION: attention(REST, before=elsewhere)}, match="no such claim")


@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param(
            attention().replace("forward_extend", "forward_prefill"), "none", id="renamed"
        ),
        pytest.param(
            attention().replace("self.use_fia", "self.fused"), "none", id="another flag decides"
        ),
        pytest.param(
            attention(before="if self.use_fia:\n    pass\n"), "found 2", id="two such branches"
        ),
    ],
)
def test_a_branch_that_is_not_clear_is_a_conflict(source: str, match: str) -> None:
    check_conflict(SEAM, {ATTENTION: source}, match=match)
