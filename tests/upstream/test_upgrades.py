"""Judge trees that an older version of this tool patched, or where somebody edited its work."""

from __future__ import annotations

import hashlib

import pytest

from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from sgl_npu_patch.engine.plan import Plan
from sgl_npu_patch.reports.conflicts import evidence_lines
from tests.upstream.behaviour import check_behaviour
from tests.upstream.edited import (
    OPS,
    SAMPLER,
    SERVER_ARGS,
    Files,
    judge,
    result,
    sources,
    statuses,
    within,
)
from tests.upstream.fixtures import ENABLE, FILTERED, HANDLER, OURS

RELEASE = "0.5.12.post1"
OLDER = "0.0.9"
MODULES = ("npu_ops", "launch_guards")


def patched() -> Files:
    """Return the release as this version patches it."""
    files = sources(RELEASE)
    return result(files, judge(files))


def written_by(version: str, module: str) -> bytes:
    """Return a vendored module as another version would have written it: another text, its sum."""
    header, _, body = vendor.render(PROJECT, module).decode().split("\n", 2)
    body = body.replace("from __future__ import annotations\n", "", 1) + "\n# older\n"
    digest = hashlib.sha256(body.encode()).hexdigest()
    current = vendor.recognise(PROJECT, module, vendor.render(PROJECT, module))
    first = header.replace(current.version, version)
    return f"{first}\n# sha256 of what follows: {digest}\n{body}".encode()


def path(module: str) -> str:
    return f"{PROJECT.vendor_folder}/{module}.py"


def printed(plan: Plan, seam: str) -> str:
    (outcome,) = (each for each in plan.conflicts if each.seam == seam)
    assert outcome.evidence is not None
    return " ".join(" ".join(evidence_lines(outcome.evidence)).split())


@pytest.mark.parametrize("older", [MODULES, MODULES[:1], MODULES[1:]], ids="+".join)
def test_what_an_older_version_wrote_is_refreshed(older: tuple[str, ...]) -> None:
    current = patched()
    files = {**current, **{path(module): written_by(OLDER, module) for module in older}}
    plan = judge(files)
    assert {o.seam for o in plan.outcomes if o.outdated} == {*older}
    assert statuses(plan) == {**OURS, **dict.fromkeys(older, "pending")}
    assert result(files, plan) == current


def test_what_an_older_version_left_out_is_completed() -> None:
    """A seam that the older version did not know yet is applied, the rest refreshed."""
    current = patched()
    files = dict(current)
    files[SAMPLER] = sources(RELEASE)[SAMPLER]
    files.update({path(module): written_by(OLDER, module) for module in MODULES})
    plan = judge(files)
    assert statuses(plan) == {
        **OURS,
        **dict.fromkeys(("sampler", "seeded_sampling", *MODULES), "pending"),
    }
    assert result(files, plan) == current


def test_the_refreshed_tree_behaves() -> None:
    files = patched()
    files.update({path(module): written_by(OLDER, module) for module in MODULES})
    check_behaviour(RELEASE, files, {**OURS, **dict.fromkeys(MODULES, "pending")})


CLAMP, CLAMPED_BY_FIRST = "if not torch.compiler.is_compiling() and is_npu():", "if is_npu():"
FIRST = "0.1.0"


def by_the_first_version() -> Files:
    """Return the release as 0.1.0 patched it.

    It asked for the device in traced code as well, and let neighbours choose between tied logits.
    """
    files = patched()
    within(files, SAMPLER, "multinomial_with_seed", (CLAMP, CLAMPED_BY_FIRST))
    text = files[SAMPLER].decode()
    start = text.index(
        "            if sampling_info.sampling_seed is not None:\n                # A greedy"
    )
    end = text.index("                )\n", start) + len("                )\n")
    files[SAMPLER] = (text[:start] + text[end:]).encode()
    files.update({path(module): written_by(FIRST, module) for module in MODULES})
    return files


def test_what_the_first_version_inserted_is_refreshed() -> None:
    files = by_the_first_version()
    plan = judge(files)
    assert {o.seam for o in plan.outcomes if o.outdated} == {"sampler", *MODULES}
    assert statuses(plan) == {**OURS, **dict.fromkeys(("sampler", *MODULES), "pending")}
    assert result(files, plan) == patched()


def test_a_hand_edited_form_of_an_older_version_is_a_conflict() -> None:
    files = by_the_first_version()
    within(files, SAMPLER, "multinomial_with_seed", ("clamp_(max=1.0 - 2.0**-32)", "clamp_(max=1)"))
    plan = judge(files)
    assert "clamp_(max=1)" in printed(plan, "sampler")
    assert not plan.changes.changes


@pytest.mark.parametrize("module", MODULES)
def test_an_edit_of_a_vendored_module_is_shown(module: str) -> None:
    files = patched()
    text = files[path(module)].decode()
    assert text.count("\nimport importlib\n") == 1
    edited = text.replace("\nimport importlib\n", "\nimport importlib as own_name\n")
    files[path(module)] = edited.encode()
    plan = judge(files)
    assert "import importlib as own_name" in printed(plan, module)
    assert not plan.changes.changes


@pytest.mark.parametrize("module", MODULES)
def test_an_edit_of_what_an_older_version_wrote_is_refused(module: str) -> None:
    files = patched()
    files[path(module)] = written_by(OLDER, module) + b"# mine\n"
    plan = judge(files)
    assert f"one that version {OLDER} wrote and somebody edited" in printed(plan, module)
    assert not plan.changes.changes


@pytest.mark.parametrize(
    ("seam", "file", "function", "old", "new"),
    [
        pytest.param(
            "batch_invariant",
            OPS,
            ENABLE,
            "npu_ops.enable(dispatch_key, enable_bmm)",
            "npu_ops.enable(dispatch_key, False)",
            id="another argument",
        ),
        pytest.param(
            "batch_invariant",
            OPS,
            "disable_batch_invariant_mode",
            "        npu_ops.disable()\n",
            "        npu_ops.disable()\n        own_step()\n",
            id="a line more",
        ),
        pytest.param(
            "sampler",
            SAMPLER,
            FILTERED,
            "fusable.any() and not fusable.all()",
            "fusable.any()",
            id="half of a test",
        ),
        pytest.param(
            "sampler",
            SAMPLER,
            "_sample_from_logits",
            "torch.argmax(logits, dim=-1)",
            "torch.argmax(logits, dim=0)",
            id="another axis",
        ),
        pytest.param(
            "launch_guards",
            SERVER_ARGS,
            HANDLER,
            "launch_guards.apply(self)",
            "launch_guards.apply(self, strict=True)",
            id="another call",
        ),
    ],
)
def test_an_edit_of_an_inserted_line_is_a_conflict(
    seam: str, file: str, function: str, old: str, new: str
) -> None:
    files = patched()
    within(files, file, function, (old, new))
    plan = judge(files)
    assert seam in {outcome.seam for outcome in plan.conflicts}
    assert any(o.evidence and new.strip().split()[-1] in o.evidence.found for o in plan.conflicts)
    assert not plan.changes.changes
