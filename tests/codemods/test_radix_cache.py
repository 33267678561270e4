"""Check where the radix cache may stay on for ascend, where it must not, and where nobody knows."""

from __future__ import annotations

import textwrap

import pytest

from tests.helpers import (
    ATTENTION,
    HANDLER,
    LOOPING_BRANCH,
    PAGED_BRANCH,
    SERVER_ARGS,
    attention,
    check_already,
    check_applied,
    check_conflict,
    check_not_needed,
    check_upstream,
    check_withheld,
    judge,
    server_args,
)

SEAM = "radix_cache"
SUPPORTED = "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"
LOOPING = {ATTENTION: attention(LOOPING_BRANCH)}


def _gated(gate: str, *, radix: str = "") -> str:
    """Give server_args with another gate, none if empty, and without the list."""
    start = HANDLER.index(f"        if self.attention_backend not in {SUPPORTED}")
    end = HANDLER.index("        if self.tp_size")
    body = textwrap.indent(gate, " " * 8)
    return server_args(radix=radix, handler=HANDLER[:start] + body + HANDLER[end:])


GATE = """\
# Prefill on ascend attends to the new tokens only and would ignore a cached prefix.
if self.attention_backend == "ascend":
    self.disable_radix_cache = True
    logger.warning(
        "Radix cache is disabled: prefill on ascend does not read cached prefixes."
    )
"""


def test_opens_the_list_where_prefill_reads_the_paged_cache() -> None:
    check_applied(
        SEAM,
        {},
        {
            SERVER_ARGS: server_args(
                radix=f'{SUPPORTED} = ["fa3", "triton", "ascend"]\n',
            )
        },
    )


def test_an_open_list_is_upstream_or_ours() -> None:
    opened = {SERVER_ARGS: server_args(radix=f'{SUPPORTED} = ["fa3", "ascend"]\n')}
    check_upstream(SEAM, opened)
    ours = "srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py"
    check_already(SEAM, {**opened, ours: judge("npu_ops")[2][ours]})


def test_upstreams_deepseek_refusal_is_a_gap() -> None:
    refusal = (
        "allowed = ['fa3', 'triton']\nif self.deepseek:\n"
        "    if self.attention_backend not in allowed:\n        raise ValueError\n"
    )
    opened = f'{SUPPORTED} = ["fa3", "ascend"]\n'
    check_upstream(SEAM, {SERVER_ARGS: _gated(refusal, radix=opened)}, gaps=("deepseek_refused",))


def test_adds_a_gate_where_there_is_none_and_prefill_ignores_the_prefix() -> None:
    before, after = _gated("", radix=""), _gated("")
    check = "                raise ValueError(self.attention_backend)\n"
    after = after.replace(check, check + textwrap.indent(GATE, " " * 12))
    check_applied(SEAM, {SERVER_ARGS: before, **LOOPING}, {SERVER_ARGS: after})


def test_the_added_gate_uses_the_handlers_own_name_for_the_arguments() -> None:
    def module_level(source: str) -> str:
        head, method = source.split("    def _handle_deterministic_inference")
        return head + textwrap.dedent("    def handle_deterministic_inference" + method).replace(
            "self", "server_args"
        )

    before = module_level(_gated(""))
    check = "            raise ValueError(server_args.attention_backend)\n"
    gate = textwrap.indent(GATE.replace("self.", "server_args."), " " * 8)
    after = before.replace(check, check + gate)
    check_applied(SEAM, {SERVER_ARGS: before, **LOOPING}, {SERVER_ARGS: after})


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param('if self.attention_backend != "fa3":', id="one backend keeps it"),
        pytest.param('if self.attention_backend not in ["fa3", "triton"]:', id="two keep it"),
        pytest.param('if self.attention_backend not in ("fa3",):', id="a tuple keeps it"),
        pytest.param(f"if self.attention_backend not in {SUPPORTED}:", id="the list keeps it"),
        pytest.param(
            'if self.attention_backend not in ["fa3"]:\n    if self.deepseek:\n'
            "        raise ValueError(self.model)\n",
            id="a refusal stands in front of the switch",
        ),
    ],
)
def test_a_closed_gate_stays_closed_where_prefill_ignores_the_prefix(gate: str) -> None:
    radix = f'{SUPPORTED} = ["fa3"]\n' if SUPPORTED in gate else ""
    source = _gated(f"{gate}\n    self.disable_radix_cache = True\n", radix=radix)
    outcome = check_withheld(SEAM, {SERVER_ARGS: source, **LOOPING}, match="--chunked-prefill-size")
    assert [site.path.name for site in outcome.sites] == ["ascend_backend.py", "server_args.py"]


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param(
            "if self.attention_backend not in KEEPING:\n    self.disable_radix_cache = True\n",
            id="a list of another name may hold ascend",
        ),
        pytest.param(
            'if self.attention_backend != "ascend":\n    self.disable_radix_cache = True\n',
            id="the gate keeps it on for ascend",
        ),
        pytest.param(
            'if self.attention_backend == "fa3":\n    self.disable_radix_cache = True\n',
            id="the gate is the other way round",
        ),
        pytest.param(
            'if self.attention_backend != "fa3":\n    if self.big:\n'
            "        self.disable_radix_cache = True\n",
            id="the switch is conditional inside the gate",
        ),
        pytest.param(
            'if self.attention_backend != "fa3":\n    pass\nelse:\n'
            "    self.disable_radix_cache = True\n",
            id="the switch is in the else",
        ),
        pytest.param(
            'if self.big:\n    if self.attention_backend != "fa3":\n'
            "        self.disable_radix_cache = True\n",
            id="the gate itself is conditional",
        ),
        pytest.param(
            'if self.attention_backend != "fa3":\n    self.disable_radix_cache = self.big\n',
            id="the value is not True",
        ),
        pytest.param(
            'def gate():\n    if self.attention_backend != "fa3":\n'
            "        self.disable_radix_cache = True\n",
            id="the gate is in a nested function",
        ),
    ],
)
def test_what_only_looks_like_a_gate_is_a_conflict(gate: str) -> None:
    check_conflict(
        SEAM,
        {SERVER_ARGS: _gated(gate), **LOOPING},
        match="another use of disable_radix_cache",
        at="def _handle_deterministic_inference",
    )


def test_a_list_that_no_gate_uses_is_a_conflict() -> None:
    source = _gated("", radix=f'{SUPPORTED} = ["fa3"]\n')
    check_conflict(
        SEAM, {SERVER_ARGS: source, **LOOPING}, match=f"the use of {SUPPORTED}", at="def _handle"
    )


def test_an_open_list_over_a_prefill_that_ignores_the_prefix_is_a_conflict() -> None:
    source = server_args(radix=f'{SUPPORTED} = ["fa3", "ascend"]\n')
    check_conflict(
        SEAM, {SERVER_ARGS: source, **LOOPING}, match="answers would be wrong", at=SUPPORTED
    )


def test_no_gate_over_a_prefill_that_reads_the_cache_is_a_conflict() -> None:
    check_conflict(SEAM, {SERVER_ARGS: _gated("")}, match="no such list", at="def _handle")


@pytest.mark.parametrize(
    ("source", "match"),
    [
        pytest.param(
            _gated("").replace("if self.attention_backend not in DET", "if self.x not in NO_DET"),
            "unknown backend",
            id="no check of the backend to stand behind",
        ),
        pytest.param(
            _gated("").replace("logger = logging", "log = logging"),
            "a module-level logger",
            id="no logger to warn with",
        ),
        pytest.param(
            _gated("").replace("if self.enable_det", "if not self.enable_det"),
            "if ...enable_deterministic_inference",
            id="the branch is the other way round",
        ),
    ],
)
def test_a_gate_that_cannot_be_placed_is_a_conflict(source: str, match: str) -> None:
    check_conflict(SEAM, {SERVER_ARGS: source, **LOOPING}, match=match)


CALL = "torch_npu.npu_fused_infer_attention_score"


@pytest.mark.parametrize(
    ("branch", "match"),
    [
        pytest.param("out = other_kernel(q)\n", "found neither", id="another kernel"),
        pytest.param(
            f"out, _ = {CALL}(q, k)\n", "found neither", id="one call without a block table"
        ),
        pytest.param(
            f"out, _ = {CALL}(q, k, block_table=None)\n", "found neither", id="no block table given"
        ),
        pytest.param(
            LOOPING_BRANCH + f"out, _ = {CALL}(q, block_table=self.tables)\n",
            "with and without",
            id="one call reads the cache and one does not",
        ),
        pytest.param(
            "for length in batch.extend_seq_lens_cpu:\n    out = other_kernel(q)\n",
            "found neither",
            id="the loop calls another kernel",
        ),
    ],
)
def test_a_prefill_that_cannot_be_told_is_a_conflict(branch: str, match: str) -> None:
    check_conflict(SEAM, {ATTENTION: attention(branch)}, match=match, at="if self.use_fia:")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(
            "if is_cp_mode:\n    if self.use_fia:\n        return ring(q)\n",
            id="context parallelism",
        ),
        pytest.param(
            "if sinks is not None:\n    if self.use_fia:\n        return sunk(q)\n",
            id="attention sinks",
        ),
        pytest.param('text = "if self.use_fia:"\n', id="a string"),
        pytest.param("if self.use_fia and self.big:\n    pass\n", id="a longer test"),
    ],
)
def test_the_branch_of_another_kind_of_model_is_not_it(before: str) -> None:
    check_withheld(
        SEAM, {ATTENTION: attention(LOOPING_BRANCH, before=before)}, match="radix cache stays off"
    )


def test_two_branches_are_a_conflict_at_both() -> None:
    outcome = check_conflict(
        SEAM,
        {ATTENTION: attention(before="if False:\n    if self.use_fia:\n        pass\n")},
        match="expected exactly one found 2",
        at="if self.use_fia:",
    )
    assert len({site.line for site in outcome.sites}) == 2


def test_the_lora_backend_of_the_same_file_name_is_not_read() -> None:
    lora = "class AscendLoRABackend:\n    def run(self):\n        return self.use_fia\n"
    check_withheld(SEAM, {**LOOPING, "srt/lora/backend/ascend_backend.py": lora}, match="stays off")


def test_a_second_attention_backend_is_a_conflict() -> None:
    check_conflict(SEAM, {"srt/fork/ascend_backend.py": attention()}, match="2 definitions")


def test_models_with_mla_in_the_first_branch_are_told_apart() -> None:
    source = (
        "class B:\n    def forward_extend(self, q, batch):\n        if self.use_mla:\n"
        "            if self.use_fia:\n                return fused_mla(q)\n        else:\n"
        "            if self.use_fia:\n" + textwrap.indent(PAGED_BRANCH, " " * 16)
    )
    outcome = check_applied(
        SEAM,
        {ATTENTION: source},
        {SERVER_ARGS: server_args(radix=f'{SUPPORTED} = ["fa3", "triton", "ascend"]\n')},
    )
    assert outcome.status == "pending"


def test_attention_comment_reads_the_same_branch() -> None:
    check_not_needed("attention_comment", LOOPING, match="no such claim")
