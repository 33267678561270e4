"""Check where DeepSeek models are accepted on ascend, and where nobody says that they may be."""

from __future__ import annotations

import pytest

from tests.helpers import (
    ATTENTION,
    HANDLER,
    LOOPING_BRANCH,
    REFUSAL,
    SERVER_ARGS,
    Files,
    attention,
    check_already,
    check_applied,
    check_conflict,
    check_not_needed,
    check_upstream,
    judge,
    native_ops,
    server_args,
)

SEAM = "hardened_radix_cache"
SUPPORTED = "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"
OPEN = f'{SUPPORTED} = ["fa3", "triton", "ascend"]\n'
LOCAL = REFUSAL.replace(
    '            if self.attention_backend not in ["fa3"]:\n',
    '            known = ["fa3", "triton"]\n            if self.attention_backend not in known:\n',
).replace("ValueError(", "ValueError(known, ")


def _native(refusal: str, *, radix: str = OPEN) -> Files:
    return {**native_ops(), SERVER_ARGS: server_args(radix=radix, handler=HANDLER + refusal)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param('["fa3"]', '["fa3", "ascend"]', id="one entry"),
        pytest.param("['fa3', 'fa4']", "['fa3', 'fa4', 'ascend']", id="single quotes"),
        pytest.param('("fa3", "fa4")', '("fa3", "fa4", "ascend")', id="a tuple"),
        pytest.param(
            '[\n                "fa3",\n            ]',
            '[\n                "fa3",\n                "ascend",\n            ]',
            id="one entry a line",
        ),
    ],
)
def test_appends_ascend_to_the_list_in_the_test(before: str, after: str) -> None:
    refusal = REFUSAL.replace('["fa3"]', before)
    expected = server_args(radix=OPEN, handler=HANDLER + refusal.replace(before, after))
    check_applied(SEAM, _native(refusal), {SERVER_ARGS: expected})


def test_appends_ascend_to_the_local_list() -> None:
    expected = LOCAL.replace('"triton"]', '"triton", "ascend"]')
    after = server_args(radix=OPEN, handler=HANDLER + expected)
    check_applied(SEAM, _native(LOCAL), {SERVER_ARGS: after})


@pytest.mark.parametrize("refusal", [REFUSAL, LOCAL], ids=["in the test", "local"])
def test_the_gap_is_closed(refusal: str) -> None:
    check_upstream("radix_cache", _native(refusal), gaps=("deepseek_refused",))
    after = dict(judge(SEAM, _native(refusal))[2])
    check_already(SEAM, after)
    check_upstream("radix_cache", after)


def test_what_is_open_is_named_beside_something_of_ours() -> None:
    hardened = dict(judge("hardened_launch", _native(REFUSAL))[2])
    assert check_already("radix_cache", hardened).gaps == ("deepseek_refused",)
    assert check_already("radix_cache", dict(judge(SEAM, hardened)[2])).gaps == ()


def test_a_list_that_the_other_series_completes_counts() -> None:
    """In a half-patched tree: judged again behind the other series, nothing must be left to do."""
    radix = f'{SUPPORTED} = ["fa3"]\n'
    after = server_args(
        radix=radix, handler=HANDLER + REFUSAL.replace('["fa3"]', '["fa3", "ascend"]')
    )
    check_applied(SEAM, _native(REFUSAL, radix=radix), {SERVER_ARGS: after})


@pytest.mark.parametrize(
    ("files", "match"),
    [
        pytest.param({}, "no adaptation of upstream's", id="no adaptation"),
        pytest.param(
            {
                **_native(REFUSAL, radix=f'{SUPPORTED} = ["fa3"]\n'),
                ATTENTION: attention(LOOPING_BRANCH),
            },
            'does not have "ascend"',
            id="the tree does not say that ascend is ready",
        ),
        pytest.param(_native(""), "no list of its own", id="nothing is refused"),
        pytest.param(
            _native(REFUSAL.replace('["fa3"]', SUPPORTED)),
            "no list of its own",
            id="refused by the list that has ascend",
        ),
        pytest.param(
            _native(REFUSAL.replace("attention_backend not", "dtype not")),
            "no list of its own",
            id="something else is refused",
        ),
    ],
)
def test_nothing_to_do(files: Files, match: str) -> None:
    check_not_needed(SEAM, files, match=match)


@pytest.mark.parametrize(
    ("refusal", "match"),
    [
        pytest.param(
            REFUSAL.replace("deepseek", "large"), "asks for DeepSeek models", id="other models"
        ),
        pytest.param(REFUSAL + REFUSAL, '["fa3"]; ["fa3"]', id="two of them"),
        pytest.param(
            LOCAL + "        check(known)\n", "2 other uses", id="the list is used elsewhere"
        ),
        pytest.param(
            LOCAL.replace(
                "            if self.att", '            known = ["fa4"]\n            if self.att'
            ),
            "2 other uses",
            id="the list is set twice",
        ),
    ],
)
def test_a_refusal_that_is_not_clear_is_a_conflict(refusal: str, match: str) -> None:
    check_conflict(SEAM, _native(refusal), match=match, at="def _handle_deterministic_inference")
