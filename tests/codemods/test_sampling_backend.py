"""Check that "ascend" is kept as the sampling backend, and everything that must not be guarded."""

from __future__ import annotations

import pytest

from tests.helpers import (
    HANDLER,
    SAMPLER,
    SERVER_ARGS,
    check_already,
    check_applied,
    check_conflict,
    check_not_needed,
    check_upstream,
    check_withheld,
    judge,
    old_sampler,
    server_args,
)

SEAM = "sampling_backend"
PAIR = """\
        self.sampling_backend = "pytorch"
        logger.warning("the sampler is pytorch's now")
"""
GUARDED = """\
        if self.sampling_backend != "ascend":
            self.sampling_backend = "pytorch"
            logger.warning("the sampler is pytorch's now")
"""


def _args(pair: str, *, handler: str = HANDLER) -> dict[str, str]:
    assert PAIR in handler
    return {SERVER_ARGS: server_args(handler=handler.replace(PAIR, pair))}


def test_guards_the_assignment_and_its_warning() -> None:
    outcome = check_applied(SEAM, {}, _args(GUARDED))
    assert outcome.sites[0].symbol == "ServerArgs._handle_deterministic_inference"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            PAIR.replace('"pytorch"', "'pytorch'  # faithful"),
            GUARDED.replace('"pytorch"', "'pytorch'  # faithful"),
            id="quotes and comments stay",
        ),
        pytest.param(
            "        first = 1\n" + PAIR,
            "        first = 1\n" + GUARDED,
            id="not the first statement",
        ),
        pytest.param(
            PAIR.replace("logger.warning(", "logger.warning(\n            ").replace(
                'now")', 'now",\n        )'
            ),
            GUARDED.replace("logger.warning(", "logger.warning(\n                ").replace(
                'now")', 'now",\n            )'
            ),
            id="a warning of several lines moves as one",
        ),
        pytest.param(
            PAIR.replace("        logger", "        # say so\n        logger"),
            GUARDED.replace("            logger", "            # say so\n            logger"),
            id="a comment between the two moves with them",
        ),
    ],
)
def test_keeps_what_stands_around(before: str, after: str) -> None:
    check_applied(SEAM, _args(before), _args(after))


def test_guards_in_a_module_level_handler() -> None:
    handler = HANDLER.replace("_handle", "handle", 1).replace("self", "server_args")
    before = f"import logging\n\nlogger = logging.getLogger()\n\n\n{handler}"
    after = before.replace(
        PAIR.replace("self", "server_args"), GUARDED.replace("self", "server_args")
    )
    path = "srt/arg_groups/attention_hook.py"
    lists = server_args(handler="def other(self):\n    pass\n")
    check_applied(SEAM, {SERVER_ARGS: lists, path: before}, {path: after})


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_indents_with_the_files_own_tabs_and_newlines(newline: str) -> None:
    def shaped(files: dict[str, str]) -> dict[str, bytes]:
        text = files[SERVER_ARGS].replace("    ", "\t").replace("\n", newline)
        return {SERVER_ARGS: text.encode()}

    check_applied(SEAM, shaped(_args(PAIR)), shaped(_args(GUARDED)))


def test_a_guard_is_upstreams_or_ours() -> None:
    check_upstream(SEAM, _args(GUARDED))
    ours = "srt/hardware_backend/npu/batch_invariant_ops/npu_ops.py"
    check_already(SEAM, {**_args(GUARDED), ours: judge("npu_ops")[2][ours]})


OVERRIDES = "srt/arg_groups/overrides.py"
OVERRIDE = """\
def _deterministic_sampling_backend(view):
    if view.enable_deterministic_inference and view.sampling_backend != "ascend":
        logger.warning("the sampler is pytorch's now")
        return {"sampling_backend": "pytorch"}
    return {}
"""


def _overridden(override: str, handler: str = "        pass\n") -> dict[str, str]:
    return {OVERRIDES: override, **_args(handler)}


def test_the_override_function_of_newer_releases_is_upstream() -> None:
    check_upstream(SEAM, _overridden(OVERRIDE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(' and view.sampling_backend != "ascend"', "", id="it is not guarded"),
        pytest.param(" and view", " or view", id="the guard asks for either"),
        pytest.param("    return {}", '    return {"sampling_backend": "pytorch"}', id="twice"),
    ],
)
def test_another_override_function_is_a_conflict(old: str, new: str) -> None:
    assert OVERRIDE.count(old) == 1
    check_conflict(SEAM, _overridden(OVERRIDE.replace(old, new)), match="expected")


def test_a_later_assignment_in_the_handler_beside_the_override_is_a_conflict() -> None:
    later = '        self.sampling_backend = "pytorch"\n'
    check_conflict(SEAM, _overridden(OVERRIDE, later), match="nothing in the handler")


def test_without_an_ascend_path_there_is_nothing_to_keep() -> None:
    check_not_needed(SEAM, {SAMPLER: old_sampler(path=False)}, match="flashinfer")


def test_with_an_unfaithful_draw_pytorch_stays_forced() -> None:
    check_withheld(SEAM, {SAMPLER: old_sampler(path=True)}, match='stays "pytorch"')


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param("        pass\n", id="nothing sets it"),
        pytest.param(
            '        self.sampling_backend = "pytorch"\n        x = 1\n', id="no warning follows"
        ),
        pytest.param('        self.sampling_backend = "pytorch"\n', id="an if follows"),
        pytest.param(PAIR + PAIR, id="it is set twice"),
        pytest.param(GUARDED + PAIR, id="one of two is guarded"),
        pytest.param(
            f"        if self.big:\n    {PAIR.rstrip()}\n".replace(
                "\n        log", "\n            log"
            ),
            id="it is set under another condition",
        ),
        pytest.param(
            GUARDED.replace('!= "ascend"', '== "ascend"'), id="the guard is the wrong way round"
        ),
        pytest.param(
            GUARDED.replace("self.sampling_backend !=", "self.attention_backend !="),
            id="the guard asks for another backend",
        ),
        pytest.param(
            GUARDED.replace('!= "ascend"', '!= "ascend" or self.big'), id="the guard asks for more"
        ),
        pytest.param(PAIR.replace('= "pytorch"', "= PYTORCH"), id="the value is no literal"),
        pytest.param(
            PAIR.replace('= "pytorch"', '= self.other = "pytorch"'), id="two targets at once"
        ),
        pytest.param(
            PAIR.replace("self.sampling_backend =", "sampling_backend ="),
            id="a local of the same name is set",
        ),
        pytest.param(
            "        def later():\n    " + PAIR.replace("\n        l", "\n            l"),
            id="it is set in a nested function",
        ),
        pytest.param(
            '        setattr(self, "sampling_backend", "pytorch")\n', id="it is set by setattr"
        ),
        pytest.param('        """\n' + PAIR + '        """\n', id="it is set in a string only"),
    ],
)
def test_is_a_conflict(pair: str) -> None:
    check_conflict(SEAM, _args(pair), match="sampling backend", at="def _handle_deterministic")


def test_an_assignment_in_the_else_of_the_branch_is_a_conflict() -> None:
    handler = HANDLER.replace(PAIR, "") + "    else:\n" + PAIR
    check_conflict(SEAM, {SERVER_ARGS: server_args(handler=handler)}, match="a direct child")


def test_an_assignment_in_front_of_the_branch_is_a_conflict() -> None:
    lines = PAIR.replace("        ", "    ")
    handler = HANDLER.replace(PAIR, "").replace(":\n", f":\n{lines}", 1)
    check_conflict(SEAM, {SERVER_ARGS: server_args(handler=handler)}, match="a direct child")


@pytest.mark.parametrize(
    ("handler", "match"),
    [
        pytest.param(
            HANDLER.replace("if self.en", "if self.x and self.en"),
            "found 0",
            id="the branch asks for more",
        ),
        pytest.param(
            HANDLER.replace("if self.en", "if False:\n        pass\n    elif self.en"),
            "found 0",
            id="the branch is an elif",
        ),
        pytest.param(
            HANDLER + HANDLER.split("\n", 1)[1], "found 2", id="there are two such branches"
        ),
        pytest.param(
            "def _handle_deterministic_inference(self):\n"
            "    if self.enable_deterministic_inference: prepare(self)\n",
            "a block of its own",
            id="the branch is on one line",
        ),
        pytest.param(
            HANDLER.replace("_handle_det", "_prepare_det"),
            "function _handle_deterministic_inference",
            id="there is no handler",
        ),
        pytest.param(HANDLER + "\n" + HANDLER, "2 definitions", id="there are two handlers"),
        pytest.param(
            "if False:\n" + "".join(f"    {line}\n" for line in HANDLER.split("\n")),
            "under no condition",
            id="the handler is dead code",
        ),
        pytest.param(
            "def outer(self):\n" + "".join(f"    {line}\n" for line in HANDLER.split("\n")),
            "inside the function outer",
            id="the handler is nested in a function",
        ),
    ],
)
def test_a_handler_that_is_not_clear_is_a_conflict(handler: str, match: str) -> None:
    check_conflict(SEAM, {SERVER_ARGS: server_args(handler=handler)}, match=match)


def test_an_override_in_a_subclass_is_a_conflict() -> None:
    sub = f"class MyArgs(ServerArgs):\n{server_args().split('inference: bool = False')[1]}"
    outcome = check_conflict(SEAM, {"srt/fork.py": sub}, match="2 definitions")
    assert {site.symbol for site in outcome.sites} == {
        "MyArgs._handle_deterministic_inference",
        "ServerArgs._handle_deterministic_inference",
    }
