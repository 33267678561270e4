"""Check how the seeded draw is threaded into the Ascend path, and when it cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.helpers import (
    SAMPLER,
    SAMPLER_CLASS,
    SAMPLER_DRAW,
    SAMPLER_FILTERED,
    SAMPLER_HEAD,
    check_already,
    check_applied,
    check_conflict,
    check_edited,
    check_not_needed,
    check_upstream,
    check_withheld,
    functions,
    judge,
    old_sampler,
    sampler,
)

SEAM = "sampler"
FILTERED = "top_k_top_p_min_p_sampling_from_logits_ascend"


def _replaced(source: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert source.count(old) == 1, (source.count(old), old)
        source = source.replace(old, new)
    return source


def _body(*pairs: tuple[str, str]) -> dict[str, str]:
    return {SAMPLER: sampler(body=_replaced(SAMPLER_CLASS, *pairs))}


def _filtered(*pairs: tuple[str, str]) -> dict[str, str]:
    return {SAMPLER: sampler(filtered=_replaced(SAMPLER_FILTERED, *pairs))}


def _draw(*pairs: tuple[str, str]) -> dict[str, str]:
    return {SAMPLER: sampler(draw=_replaced(SAMPLER_DRAW, *pairs))}


def _patched() -> str:
    return judge(SEAM)[2][SAMPLER].decode()


def test_threads_the_positions_down_to_the_draws() -> None:
    found = functions(check_edited(SEAM, {}, SAMPLER))
    for name in ("_forward_ascend_backend", "_sample_from_logits", FILTERED):
        arguments = found[name].args
        assert arguments.args[-1].arg == "positions", name
        assert not arguments.defaults, name
    assert [a.arg for a in found[FILTERED].args.args[-2:]] == ["sampling_seed", "positions"]


@pytest.mark.parametrize(
    "text",
    [
        "                logits, info, simple, return_logprob, positions\n            )",
        "        simple: bool,\n        positions: torch.Tensor,\n    ) -> torch.Tensor:",
        "        ids = self._sample_from_logits(logits, info, simple, positions)\n",
        "                info.sampling_seed,\n                positions,\n            )",
        "            floor = kept.max(dim=-1).values * min_ps\n",
        "@torch.compile(dynamic=True, disable=is_npu())\n",
        (
            "    u = bits.to(torch.float64) / torch.iinfo(torch.uint32).max\n"
            "    if not torch.compiler.is_compiling() and is_npu():\n"
        ),
        "        u.clamp_(max=1.0 - 2.0**-32)\n",
        "            ids = torch.multinomial(probs, num_samples=1).view(-1)\n",
        "        rank = torch.multinomial(ranked, num_samples=1)\n",
    ],
)
def test_writes_each_part_in_its_place(text: str) -> None:
    check_edited(SEAM, {}, SAMPLER, text)


def test_a_patched_sampler_is_ours() -> None:
    check_already(SEAM, {SAMPLER: _patched()})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "def _forward_ascend_backend(self, logits, info, simple, return_logprob):",
            "def _forward_ascend_backend(\n"
            "        self, logits, info, simple, return_logprob, positions: torch.Tensor\n    ):",
            id="a def that gets too long is wrapped",
        ),
        pytest.param(
            "def _forward_ascend_backend(self, logits, info, a_rather_long_name, lp):",
            "def _forward_ascend_backend(\n"
            "        self, logits, info, a_rather_long_name, lp, positions: torch.Tensor\n    ):",
            id="a wrapped def may fill the line",
        ),
        pytest.param(
            "def _forward_ascend_backend(\n"
            "        self, logits, info, a_rather_long_name_for_it, another_one, lp\n    ):",
            "def _forward_ascend_backend(\n        self,\n        logits,\n        info,\n"
            "        a_rather_long_name_for_it,\n        another_one,\n        lp,\n"
            "        positions: torch.Tensor,\n    ):",
            id="hugged parameters that get too long go one a line",
        ),
        pytest.param(
            "def _forward_ascend_backend(self, logits, info, simple, lp):",
            "def _forward_ascend_backend(\n"
            "        self, logits, info, simple, lp, positions: torch.Tensor\n    ):",
            id="89 columns are too many",
        ),
        pytest.param(
            "def _forward_ascend_backend(self, logits, info, simple, x):",
            "def _forward_ascend_backend(self, logits, info, simple, x, positions: torch.Tensor):",
            id="88 columns stay on one line",
        ),
        pytest.param(
            "def _forward_ascend_backend(\n        self,\n        logits,  # scaled\n"
            "        info,\n        simple,  # no filter\n        return_logprob,  # last\n    ):",
            "def _forward_ascend_backend(\n        self,\n        logits,  # scaled\n"
            "        info,\n        simple,  # no filter\n        return_logprob,  # last\n"
            "        positions: torch.Tensor,\n    ):",
            id="comments stay behind their parameters",
        ),
        pytest.param(
            "def _forward_ascend_backend(\n        self,\n        logits,\n        info,\n"
            "        simple,\n        return_logprob\n    ):",
            "def _forward_ascend_backend(\n        self,\n        logits,\n        info,\n"
            "        simple,\n        return_logprob,\n        positions: torch.Tensor\n    ):",
            id="no trailing comma is added",
        ),
        pytest.param(
            "def _forward_ascend_backend(\n"
            "        self, logits, info, simple, return_logprob\n    ):",
            "def _forward_ascend_backend(\n"
            "        self, logits, info, simple, return_logprob, positions: torch.Tensor\n    ):",
            id="hugged parameters stay on their line",
        ),
        pytest.param(
            "def _forward_ascend_backend(self, logits, info, *, m=None):",
            "def _forward_ascend_backend(self, logits, info, positions: torch.Tensor, *, m=None):",
            id="in front of those by keyword",
        ),
    ],
)
def test_parameters_follow_the_layout(before: str, after: str) -> None:
    head = "def _forward_ascend_backend(self, logits, info, simple, return_logprob):"
    check_edited(SEAM, _body((head, before)), SAMPLER, f"    {after}\n")


CALL = "ids = self._sample_from_logits(logits, info, simple)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "some_name_that_is_long = self._sample_from_logits(logits, info, not_filtered)",
            "some_name_that_is_long = self._sample_from_logits(\n"
            "            logits, info, not_filtered, positions\n        )",
            id="a call that gets too long is wrapped",
        ),
        pytest.param(
            "ids = self._sample_from_logits(\n            logits,  # scaled\n            info,\n"
            "            simple,  # last\n        )",
            "ids = self._sample_from_logits(\n            logits,  # scaled\n            info,\n"
            "            simple,  # last\n            positions,\n        )",
            id="comments stay behind their arguments",
        ),
        pytest.param(
            "ids = self._sample_from_logits(\n            logits,\n            info,  # all\n"
            "            simple  # last\n        )",
            "ids = self._sample_from_logits(\n            logits,\n            info,  # all\n"
            "            simple,  # last\n            positions\n        )",
            id="a comment stays behind an argument that has no comma",
        ),
        pytest.param(
            "ids = self._sample_from_logits(\n"
            "            logits, info, simple or some_rather_long_name, something_else_altogether\n"
            "        )",
            "ids = self._sample_from_logits(\n            logits,\n            info,\n"
            "            simple or some_rather_long_name,\n            something_else_altogether,\n"
            "            positions,\n        )",
            id="hugged arguments that get too long go one a line",
        ),
        pytest.param(
            "ids = self._sample_from_logits(logits,\n" + " " * 39 + "info, simple)",
            "ids = self._sample_from_logits(logits,\n" + " " * 39 + "info, simple, positions)",
            id="aligned arguments",
        ),
        pytest.param(
            "ids = self._sample_from_logits(logits, info, simple).view(-1)",
            "ids = self._sample_from_logits(logits, info, simple, positions).view(-1)",
            id="a call inside a longer expression",
        ),
    ],
)
def test_arguments_follow_the_layout(before: str, after: str) -> None:
    check_edited(SEAM, _body((CALL, before)), SAMPLER, f"        {after}\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@torch.compile(dynamic=True)\n", "@torch.compile(dynamic=True, disable=is_npu())\n"),
        ("@torch.compile(dynamic=True,)\n", "@torch.compile(dynamic=True,disable=is_npu())\n"),
        ("@torch.compile()\n", "@torch.compile(disable=is_npu())\n"),
        ("@torch.compile\n", "@torch.compile(disable=is_npu())\n"),
        (
            "@torch.no_grad()\n@torch.compile\n",
            "@torch.no_grad()\n@torch.compile(disable=is_npu())\n",
        ),
    ],
)
def test_switches_compilation_off_on_an_npu(before: str, after: str) -> None:
    draw = _draw(("@torch.compile(dynamic=True)\n", before))
    check_edited(SEAM, draw, SAMPLER, f"\n\n{after}def multinomial")


def test_a_draw_that_is_not_compiled_stays_undecorated() -> None:
    draw = _draw(("@torch.compile(dynamic=True)\n", ""))
    check_edited(SEAM, draw, SAMPLER, "\n\n\ndef multinomial_with_seed(")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("kept.max(dim=-1) * min_ps", "kept.max(dim=-1).values * min_ps"),
        ("min_ps * kept.max(dim=-1)", "min_ps * kept.max(dim=-1).values"),
        ("kept.max(-1) * min_ps", "kept.max(-1).values * min_ps"),
        ("(kept.max(dim=-1)) * min_ps", "(kept.max(dim=-1)).values * min_ps"),
        (
            "kept.max(dim=-1, keepdim=True) * min_ps.view(-1, 1)",
            "kept.max(dim=-1, keepdim=True).values * min_ps.view(-1, 1)",
        ),
        ("kept.max(dim=-1).values * min_ps", "kept.max(dim=-1).values * min_ps"),
        ("kept.max(dim=-1)[0] * min_ps", "kept.max(dim=-1)[0] * min_ps"),
        ("kept.amax(dim=-1) * min_ps", "kept.amax(dim=-1) * min_ps"),
        ("kept.max() * min_ps", "kept.max() * min_ps"),
    ],
)
def test_takes_the_values_of_a_maximum_once(before: str, after: str) -> None:
    check_edited(
        SEAM, _filtered(("kept.max(dim=-1) * min_ps", before)), SAMPLER, f"floor = {after}\n"
    )


def test_takes_the_values_of_every_maximum() -> None:
    """A merge may have left the threshold twice; the second run must find nothing to do."""
    line = "            floor = kept.max(dim=-1) * min_ps\n"
    twice = _filtered((line, line * 2))
    check_edited(SEAM, twice, SAMPLER, line.replace(" *", ".values *") * 2)


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(
            "    u.log_().clamp_(max=-1e-9).neg_()\n",
            id="its logarithm is bounded, as from 0.5.18 on",
        ),
        pytest.param(
            "    u.clamp_(min=0.0, max=1 - 1e-9)\n    u.log_().neg_()\n", id="it is itself"
        ),
    ],
)
def test_a_draw_that_is_bounded_gets_no_second_bound(bound: str) -> None:
    log = "    u.log_().neg_()\n"
    result = check_edited(SEAM, _draw((log + log, bound + log)), SAMPLER)
    assert "The largest hash" not in result


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param("    u.clamp_(max=1.0)\n", id="it bounds nothing"),
        pytest.param("    u.log_().clamp_(max=0.0)\n", id="nor does this"),
        pytest.param("    u.clamp_(max=LARGEST)\n", id="its bound is not known"),
        pytest.param("    u.clamp_(max=0.5)\n", id="it would cut what is drawn"),
        pytest.param("    u.clamp_(max=1 / 0)\n", id="it is no number"),
    ],
)
def test_another_bound_is_no_reason_to_leave_ours_out(bound: str) -> None:
    log = "    u.log_().neg_()\n"
    check_edited(
        SEAM, _draw((log + log, bound + log + log)), SAMPLER, "u.clamp_(max=1.0 - 2.0**-32)"
    )


def test_a_bound_on_something_else_does_not_count() -> None:
    draw = _draw(("logprobs.to(torch.float64)", "logprobs.clamp(max=0.0).to(torch.float64)"))
    check_conflict(SEAM, draw, match="what multinomial_with_seed takes")
    draw = _draw(("    columns", "    seed = seed.clamp(max=99)\n    columns"))
    check_edited(SEAM, draw, SAMPLER, "u.clamp_(max=1.0 - 2.0**-32)")


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda s: s.replace("\n", "\r\n").encode(), id="CRLF"),
        pytest.param(lambda s: b"\xef\xbb\xbf" + s.encode(), id="BOM"),
        pytest.param(lambda s: s.rstrip("\n").encode(), id="no final newline"),
        pytest.param(lambda s: b"# coding: latin-1\n# \xe9\n" + s.encode(), id="latin-1 cookie"),
    ],
)
def test_keeps_every_other_byte(shape: Callable[[str], bytes]) -> None:
    check_applied(SEAM, {SAMPLER: shape(sampler())}, {SAMPLER: shape(_patched())})


def test_finds_the_functions_where_they_moved() -> None:
    check_applied(
        SEAM,
        {SAMPLER: None, "srt/sampling/ascend.py": sampler()},
        {"srt/sampling/ascend.py": _patched()},
    )


def test_the_draw_may_stand_in_a_module_of_its_own() -> None:
    head = SAMPLER_HEAD + "\nfrom sglang.srt.draw import multinomial_with_seed\n"
    files = {
        SAMPLER: "\n\n".join((head, SAMPLER_CLASS, SAMPLER_FILTERED)),
        "srt/draw.py": SAMPLER_HEAD + "\n\n" + SAMPLER_DRAW,
    }
    check_edited(SEAM, files, "srt/draw.py", "disable=is_npu()", "u.clamp_(")
    check_edited(SEAM, files, SAMPLER, "return multinomial_with_seed(weights, sampling_seed")


def test_without_an_ascend_path_there_is_nothing_to_patch() -> None:
    check_not_needed(SEAM, {SAMPLER: old_sampler(path=False)}, match='"flashinfer" and "pytorch"')
    single = old_sampler(path=False).replace('"', "'")
    check_not_needed(SEAM, {SAMPLER: single}, match='"flashinfer" and "pytorch"')


def test_an_unfaithful_draw_is_left_alone() -> None:
    check_withheld(SEAM, {SAMPLER: old_sampler(path=True)}, match="does not follow the model's")


def _native() -> str:
    body = _replaced(
        SAMPLER_CLASS,
        (
            "logits, info, simple, return_logprob\n",
            "logits, info, simple, return_logprob, positions\n",
        ),
        ("simple, return_logprob):", "simple, return_logprob, positions):"),
        ("info, simple)\n", "info, simple, positions)\n"),
        ("simple: bool,\n", "simple: bool,\n        positions=None,\n"),
        (
            "ids = torch.multinomial(probs, num_samples=1).view(-1)",
            "ids = multinomial_with_seed(torch.log(probs), info.seed, positions)",
        ),
    )
    filtered = _replaced(
        SAMPLER_FILTERED,
        ("need_min_p_sampling: bool,\n", "need_min_p_sampling: bool,\n    positions=None,\n"),
        ("torch.multinomial(kept, num", "multinomial_with_seed(kept.log(), num"),
    )
    return sampler(
        body=body, filtered=filtered, draw=SAMPLER_DRAW.replace("True", "True, disable=is_npu()")
    )


def test_upstreams_own_form_is_upstream_with_its_gaps() -> None:
    check_upstream(
        SEAM,
        {SAMPLER: _native()},
        gaps=("min_p_type_error", "neighbour_dependent_draw", "gumbel_upper_bound", "top_p_dtype"),
    )


def test_half_of_upstreams_form_is_a_conflict() -> None:
    half = _native().replace("kept.log()", "kept")
    check_conflict(SEAM, {SAMPLER: half}, match="found 0 of them", at="def _sample_from_logits")


def test_every_part_alone_may_be_missing_from_our_own_form() -> None:
    patched = _patched()
    for ours, before in {
        "return_logprob, positions\n": "return_logprob\n",
        ", disable=is_npu()": "",
        "info, simple, positions)\n": "info, simple)\n",
    }.items():
        assert patched.count(ours) == 1, ours
        check_applied(SEAM, {SAMPLER: patched.replace(ours, before)}, {SAMPLER: patched})


def test_a_draw_that_was_taken_out_again_is_put_back_once() -> None:
    patched = _patched()
    start = patched.index("            if info.sampling_seed is not None:\n                weights")
    end = patched.index("            ids = torch.multinomial(probs")
    start_greedy = patched.index("            if info.sampling_seed is not None:", end)
    end_greedy = patched.index("            return ids.to(torch.int32)\n", start_greedy)
    without = patched[:start] + patched[end:start_greedy] + patched[end_greedy:]
    check_applied(SEAM, {SAMPLER: without}, {SAMPLER: patched})


@pytest.mark.parametrize(
    ("ours", "other", "match"),
    [
        pytest.param(
            "                info.sampling_seed,\n                positions,\n",
            "                positions,\n",
            "none of info.sampling_seed",
            id="the seed is not handed on beside the positions",
        ),
        pytest.param(
            "multinomial_with_seed(\n                    weights",
            "multinomial_with_seed(\n                    weights.log()",
            "what this tool inserts here",
            id="the draw takes a logarithm of logits",
        ),
        pytest.param(
            "    return multinomial_with_seed(weights, sampling_seed, positions).view(-1)\n"
            "        ids",
            "    pass\n        ids",
            "what this tool inserts here",
            id="the draw is missing on the fused path",
        ),
    ],
)
def test_half_of_our_own_form_is_not_guessed_at(ours: str, other: str, match: str) -> None:
    check_conflict(SEAM, {SAMPLER: _replaced(_patched(), (ours, other))}, match=match)


@pytest.mark.parametrize(
    ("pair", "match"),
    [
        pytest.param(
            ("logprobs.to(torch.float64))", "other)"),
            "neither, so whether",
            id="it does not use its parameter",
        ),
        pytest.param(
            ("u.add_(logprobs.to(torch.float64))", "u = logprobs / u"),
            "neither, so whether",
            id="it divides, as the exponential trick does",
        ),
        pytest.param(
            ("u.add_(logprobs.to(torch.float64))", "u.add_(scaled(logprobs))"),
            "neither, so whether",
            id="it adds what a helper makes of its parameter",
        ),
        pytest.param(
            ("u.add_(logprobs.to(torch.float64))", "u = u + logprobs.shape[1]"),
            "neither, so whether",
            id="it adds only a size of its parameter",
        ),
        pytest.param(
            ("    columns", "    logprobs = prepared(logprobs)\n    columns"),
            "neither, so whether",
            id="it rebinds its parameter first",
        ),
        pytest.param(
            ("u.add_(logprobs.to", "u.add_(logprobs.log().to"),
            "a draw that takes probabilities",
            id="it takes the logarithm itself",
        ),
        pytest.param(
            ("    columns", "    logprobs.log_()\n    columns"),
            "a draw that takes probabilities",
            id="it takes the logarithm in place",
        ),
        pytest.param(
            ("u.add_(logprobs.to", "u.add_(torch.log(logprobs).to"),
            "a draw that takes probabilities",
            id="it takes torch's logarithm",
        ),
    ],
)
def test_what_the_draw_takes_must_be_clear(pair: tuple[str, str], match: str) -> None:
    check_conflict(SEAM, _draw(pair), match=match, at="def multinomial_with_seed")


@pytest.mark.parametrize(
    ("pair", "match"),
    [
        pytest.param(
            ("(dynamic=True)", "(dynamic=True, disable=DEBUG)"),
            "without disable=",
            id="compilation has a switch of its own",
        ),
        pytest.param(
            ("@torch.compile(dynamic=True)", "@compiled"),
            "none that could compile it",
            id="a decorator that may compile it",
        ),
        pytest.param(
            ("/ torch.iinfo(torch.uint32).max", "/ 2**32"), "uint32's maximum", id="another divisor"
        ),
        pytest.param(
            ("u = bits", "u[:] = bits"), "uint32's maximum", id="the draw fills a part of something"
        ),
        pytest.param(
            ("bits.to(torch.float64)", "bits.to(torch.float32)"),
            "one in float64",
            id="in float32 the bound would round to 1",
        ),
    ],
)
def test_a_draw_that_cannot_be_fitted_is_a_conflict(pair: tuple[str, str], match: str) -> None:
    check_conflict(SEAM, _draw(pair), match=match, at="def multinomial_with_seed")


@pytest.mark.parametrize(
    "rebound",
    [
        pytest.param("multinomial_with_seed = torch.compile(multinomial_with_seed)", id="compiled"),
        pytest.param("from other import multinomial_with_seed", id="imported over"),
    ],
)
def test_a_draw_that_is_replaced_further_down_is_a_conflict(rebound: str) -> None:
    draw = f"{SAMPLER_DRAW}\n\n{rebound}\n"
    check_conflict(SEAM, {SAMPLER: sampler(draw=draw)}, match="replaces")


TEST = 'hasattr(torch_npu, "npu_top_k_top_p") and torch.all(top_ks <= 1024)'


@pytest.mark.parametrize(
    ("pair", "match"),
    [
        pytest.param(
            (TEST, 'hasattr(torch_npu, "npu_top_k_top_p")'), "torch.all", id="no test of the rows"
        ),
        pytest.param(
            (TEST, TEST + " and not need_min_p_sampling"), "torch.all", id="min-p moves the batch"
        ),
        pytest.param((TEST, TEST.replace(" and ", " or ")), "torch.all", id="either will do"),
        pytest.param((TEST, f"not ({TEST})"), "torch.all", id="the paths are the other way round"),
        pytest.param(
            ("torch.all(top_ks <= 1024)", "torch.all(allowed)"),
            "a test on the parameters",
            id="the rows are tested by a name that is not a parameter",
        ),
        pytest.param(
            ("    if hasattr", "    top_ks = top_ks.clamp(max=9)\n    if hasattr"),
            "in the function's first statement",
            id="a statement in front would run twice for a mixed batch",
        ),
        pytest.param(
            ("    min_ps: torch.Tensor,\n", ""),
            "logits, top_ks, top_ps, min_ps",
            id="fewer parameters",
        ),
        pytest.param(
            ("need_min_p_sampling: bool,\n", "need_min_p_sampling: bool,\n    extra,\n"),
            "logits, top_ks, top_ps, min_ps",
            id="a further parameter",
        ),
        pytest.param(
            ("need_min_p_sampling: bool,\n", "need_min_p_sampling: bool,\n    **options,\n"),
            "positional ones without defaults",
            id="further keywords",
        ),
        pytest.param(
            ("need_min_p_sampling: bool,\n", "need_min_p_sampling: bool,\n    *rest,\n"),
            "positional ones without defaults",
            id="further positional arguments",
        ),
        pytest.param(
            ("need_min_p_sampling: bool,", "need_min_p_sampling: bool = False,"),
            "positional ones without defaults",
            id="a default",
        ),
        pytest.param(
            ("ids = torch.multinomial(kept, num_samples=1)", "ids = other(kept)"),
            "one torch.multinomial on each path",
            id="no draw on the fused path",
        ),
        pytest.param(
            (
                "        rank = torch",
                "        rank = torch.multinomial(ranked, 1)\n        rank = torch",
            ),
            "found 2 of them",
            id="two draws on the sorted path",
        ),
        pytest.param(
            ("torch.multinomial(ranked", "torch.multinomial(probs"),
            "torch.multinomial(ranked, ...)",
            id="the sorted path draws from what it did not sort",
        ),
        pytest.param(
            ("ranked, order = probs.sort", "ranked = probs.sort"), "the sort of", id="no indices"
        ),
        pytest.param(
            ("torch.cumsum(ranked", "torch.softmax(ranked"), "cumulative sum", id="no sum"
        ),
        pytest.param(
            ("torch.multinomial(kept, num_samples=1)", "torch.multinomial(num_samples=1)"),
            "torch.multinomial of a variable",
            id="the fused path draws from no variable",
        ),
        pytest.param(
            ("torch.multinomial(kept, num", "torch.multinomial(kept * 2, num"),
            "torch.multinomial of a variable",
            id="the fused path draws from an expression",
        ),
        pytest.param(
            ("kept = fused.softmax(dim=-1)", "kept = (fused / 2).softmax(dim=-1)"),
            "the softmax of fused",
            id="the fused path scales the logits itself",
        ),
        pytest.param(
            (
                "        ids = torch.multinomial(kept",
                "        kept.pow_(2)\n        ids = torch.multinomial(kept",
            ),
            "the softmax of fused",
            id="the fused path weights the probabilities",
        ),
        pytest.param(
            (
                "        ids = torch.multinomial(kept",
                "        kept *= bias\n        ids = torch.multinomial(kept",
            ),
            "the softmax of fused",
            id="the fused path multiplies the probabilities",
        ),
        pytest.param(
            ("probs = torch.softmax(logits, dim=-1)", "probs = torch.softmax(logits / 2, dim=-1)"),
            "the softmax of logits",
            id="the sorted path scales the logits itself",
        ),
        pytest.param(
            (
                "        ids = torch.multinomial(kept",
                "        if fused.any():\n            ids = torch.multinomial(kept",
            ),
            "one that each path always makes",
            id="the fused path draws under a further condition",
        ),
        pytest.param(
            ("        rank = torch", "        ranked.pow_(2)\n        rank = torch"),
            "the sorted probabilities",
            id="the sorted path weights the probabilities",
        ),
        pytest.param(
            ("        rank = torch", "        ranked = ranked * bias\n        rank = torch"),
            "the sorted probabilities",
            id="the sorted path multiplies the probabilities",
        ),
        pytest.param(
            ("return ids.view(-1)", "return ids.view(-1), 1.0"),
            "a return of nothing else",
            id="it returns something beside the tokens",
        ),
        pytest.param(
            ("    return ids.view", "    record(ids)\n    return ids.view"),
            "a return of nothing else",
            id="something is done with the tokens first",
        ),
        pytest.param(
            ("index=rank)\n", "index=rank)\n        ids = remap(ids)\n"),
            "a return of nothing else",
            id="the tokens are mapped to others first",
        ),
    ],
)
def test_filtered_sampling_that_is_not_clear_is_a_conflict(
    pair: tuple[str, str], match: str
) -> None:
    check_conflict(SEAM, _filtered(pair), match=match, at=f"def {FILTERED}")


def test_out_of_place_masks_are_no_draws_of_ours() -> None:
    masked = _filtered(
        (
            "ranked.masked_fill_(total - ranked > top_ps.view(-1, 1), 0.0)",
            "ranked = ranked.masked_fill(total - ranked > top_ps.view(-1, 1), 0.0)",
        )
    )
    check_edited(SEAM, masked, SAMPLER)


def test_a_docstring_stays_first() -> None:
    source = _filtered(("    if hasattr", '    """Say so."""\n    # why\n    if hasattr'))
    check_edited(SEAM, source, SAMPLER, ':\n    """Say so."""\n    if sampling_seed is not None')


@pytest.mark.parametrize(
    ("pair", "match"),
    [
        pytest.param(
            (
                "return ids.to(torch.int32)\n        else",
                "return ids.to(torch.int32), probs\n        else",
            ),
            "a return of nothing else",
            id="it returns the probabilities too",
        ),
        pytest.param(
            (
                "torch.softmax(logits, dim=-1)\n            ids",
                "torch.softmax(logits / 2, dim=-1)\n            ids",
            ),
            "the softmax of logits",
            id="it scales the logits itself",
        ),
        pytest.param(
            (
                "            ids = torch.multi",
                "            probs = renormed(probs)\n            ids = torch.multi",
            ),
            "the softmax of logits",
            id="it changes the probabilities",
        ),
        pytest.param(
            (
                "            probs = torch.softmax(logits, dim=-1)\n",
                "            probs = info.probs\n",
            ),
            "the softmax of logits",
            id="it draws from something else",
        ),
        pytest.param(
            ("logits: torch.Tensor,\n        info,", "info,\n        logits: torch.Tensor,"),
            "the softmax of info",
            id="its parameters are in another order",
        ),
        pytest.param(
            ("        self,\n        logits: torch.Tensor,\n", "        logits: torch.Tensor,\n"),
            "self, the logits",
            id="it is a function without self",
        ),
        pytest.param(
            (
                "                info.min_ps,\n                info.need_min_p_sampling,\n",
                "                info.min_ps,\n                need_min_p_sampling=info.min_p,\n",
            ),
            "positional arguments only",
            id="it hands its arguments on by keyword",
        ),
        pytest.param(
            ("        simple: bool,\n", "        simple: bool = True,\n"),
            "positional ones without defaults",
            id="it has a default",
        ),
    ],
)
def test_simple_sampling_that_is_not_clear_is_a_conflict(pair: tuple[str, str], match: str) -> None:
    check_conflict(SEAM, _body(pair), match=match, at="def _sample_from_logits")


@pytest.mark.parametrize(
    ("pair", "match"),
    [
        pytest.param(("return_logprob, positions):", "return_logprob):"), "a parameter positions",
                     id="forward has no positions"),
        pytest.param(("logits, info, simple, return_logprob\n", "logits, *info\n"),
                     "positional arguments only", id="the call is starred"),
        pytest.param(("logits, info, simple, return_logprob\n", "logits, info=info\n"),
                     "positional arguments only", id="the call uses keywords"),
        pytest.param(
            ("            ids, logprobs = self._forward_ascend_backend(",
             "            for ids in self._forward_ascend_backend("),
            "on lines of its own", id="the call is in the head of a loop"),
    ],
)  # fmt: skip
def test_a_forward_that_is_not_clear_is_a_conflict(pair: tuple[str, str], match: str) -> None:
    body = _replaced(SAMPLER_CLASS, pair)
    if "for ids in" in body:
        body = body.replace(
            "return_logprob\n            )\n", "return_logprob\n            ): pass\n"
        )
    check_conflict(SEAM, {SAMPLER: sampler(body=body)}, match=match, at="def forward")


def test_a_handler_on_one_line_is_a_conflict() -> None:
    start = SAMPLER_CLASS.index("    def _forward_ascend_backend")
    call = "self._sample_from_logits(a, b, c)"
    one = f"    def _forward_ascend_backend(self, a, b, c, d): return {call}\n"
    check_conflict(
        SEAM,
        {SAMPLER: sampler(body=SAMPLER_CLASS[:start] + one)},
        match="on lines of its own",
        at="def _forward_ascend_backend",
    )


OTHER = "srt/speculative/fork.py"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param(
            "def f(s, a):\n    return s._sample_from_logits(a, a, a)\n",
            "found 2 calls",
            id="another caller",
        ),
        pytest.param(
            "def f(s):\n    g = s._sample_from_logits\n    return g\n",
            "1 other uses",
            id="a reference",
        ),
        pytest.param(
            'def f(s):\n    return getattr(s, "_sample_from_logits")\n',
            "1 other uses",
            id="getattr by its name",
        ),
        pytest.param(
            f"from sglang.srt.layers.sampler import {FILTERED}\n", "1 other uses", id="an import"
        ),
        pytest.param(
            f"def f(*a):\n    return {FILTERED}(*a)\n",
            "found 2 calls",
            id="a caller of the function",
        ),
        pytest.param(
            "class S(Sampler):\n    def forward(self, a):\n"
            "        return self._forward_ascend_backend(a, a, a, a)\n",
            "found 2 calls",
            id="a caller in a subclass",
        ),
        pytest.param(
            "class S(Sampler):\n    def _sample_from_logits(self, a, b, c):\n        return a\n",
            "2 definitions",
            id="an override in a subclass",
        ),
        pytest.param(
            "class S(Sampler):\n    def _forward_ascend_backend(self, *a):\n"
            "        return super()._forward_ascend_backend(*a)\n",
            "2 definitions",
            id="an override that calls the original",
        ),
        pytest.param(f"def {FILTERED}(a):\n    return a\n", "2 definitions", id="a copy"),
        pytest.param(
            "def multinomial_with_seed(a, b, c):\n    return a\n",
            "2 definitions",
            id="a second draw",
        ),
    ],
)
def test_what_else_uses_the_functions_is_a_conflict(text: str, match: str) -> None:
    outcome = check_conflict(SEAM, {OTHER: text}, match=match)
    assert any(site.path.name == "fork.py" and site.line for site in outcome.sites)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('"""Like _sample_from_logits(...)."""\n', id="a docstring"),
        pytest.param("# s._sample_from_logits(a, b, c)\n", id="a comment"),
        pytest.param('x = "call _sample_from_logits"\n', id="a sentence"),
        pytest.param("def f(s):\n    return s._sample_from_logits_fast()\n", id="a longer name"),
        pytest.param(
            "from sglang.srt.layers.sampler import multinomial_with_seed\n", id="users of the draw"
        ),
    ],
)
def test_what_only_mentions_the_functions_does_not_matter(text: str) -> None:
    check_applied(SEAM, {OTHER: text}, {SAMPLER: _patched()})


def test_a_call_from_elsewhere_than_the_path_is_a_conflict() -> None:
    body = _replaced(SAMPLER_CLASS, (CALL, "ids = self.between(logits, info, simple)"))
    body += (
        "\n    def between(self, logits, info, simple):\n"
        "        return self._sample_from_logits(logits, info, simple)\n"
    )
    check_conflict(
        SEAM, {SAMPLER: sampler(body=body)}, match="found Sampler.between", at="def between"
    )


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("from sglang.srt.utils.common import is_npu\n\nif is_npu():", "if True:", "is_npu"),
        ("from typing import Optional\n", "", "Optional"),
        (
            "from typing import Optional\n",
            "if TYPE_CHECKING:\n    from typing import Optional\n",
            "Optional",
        ),
        ("import torch\n\nfrom", "from", "torch"),
    ],
)
def test_a_module_that_lacks_a_name_is_a_conflict(old: str, new: str, match: str) -> None:
    head = _replaced(SAMPLER_HEAD, (old, new))
    check_conflict(SEAM, {SAMPLER: sampler(head=head)}, match=f"sought {match} in sampler.py")


def test_a_draw_that_the_sampler_does_not_import_is_a_conflict() -> None:
    files = {
        SAMPLER: "\n\n".join((SAMPLER_HEAD, SAMPLER_CLASS, SAMPLER_FILTERED)),
        "srt/draw.py": SAMPLER_HEAD + "\n\n" + SAMPLER_DRAW,
    }
    check_conflict(SEAM, files, match="sought multinomial_with_seed in sampler.py")


@pytest.mark.parametrize("name", ["_forward_ascend_backend", "_sample_from_logits", FILTERED])
def test_a_function_that_is_gone_is_a_conflict(name: str) -> None:
    check_conflict(SEAM, {SAMPLER: sampler().replace(name, "renamed")}, match=name)


def test_a_sampler_that_names_no_backend_is_a_conflict() -> None:
    source = old_sampler(path=False).replace('"pytorch"', "DEFAULT")
    check_conflict(SEAM, {SAMPLER: source}, match="the sampler's choice between sampling backends")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this interpreter parses t-strings")
def test_callers_in_newer_syntax_are_not_counted_by_guess() -> None:
    newer = sampler() + "\n\ndef unrelated(name):\n    return " + "t" + '"{name}"\n'
    check_conflict(SEAM, {SAMPLER: newer}, match="newer Python")
