"""Run the scenarios on one tree's scheduler, as `protocol` describes.

Never run by hand: `run` has it started, in an environment with the simulated NPU.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# First, because it loads the simulated device, which must not find a part of itself half loaded.
import torch  # noqa: F401

from sgl_npu_patch.simulator import uncovered
from sgl_npu_patch.verify import protocol
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.findings import NotApplicable
from sgl_npu_patch.verify.server import models
from sgl_npu_patch.verify.server.company import Company
from sgl_npu_patch.verify.server.drive import Engine
from sgl_npu_patch.verify.server.run import STARTS, STARTS_MEANING
from sgl_npu_patch.verify.server.scenarios import CHUNK, POOL, SCENARIOS, Scenario

Options = tuple[tuple[str, Any], ...]

NOT_STARTED = 3
"""What the process of the first server ends with if that did not start."""


def main() -> None:
    """Run what the request asks for, each launch of the server in a process of its own."""
    request, answer = protocol.begin()
    ends = time.monotonic() + request["seconds"]
    only = {*request["only"]}
    chosen = [each for each in SCENARIOS.values() if not only or each.id in only]
    declared = [(STARTS, STARTS_MEANING), *((each.id, each.meaning) for each in chosen)]
    answer({"declared": [{"id": i, "seam": "", "meaning": m, "gap": ""} for i, m in declared]})
    code = 0
    try:
        model = models.make(request["model"], Path(request["scratch"]) / "model")
        # Imported once, for all of the processes; the second imports every model.
        for name in ("managers.scheduler", "models.registry"):
            import_module(f"sglang.srt.{name}")
    except BaseException as error:  # noqa: BLE001  # a server that cannot start says nothing
        _give_up(answer, chosen, error)
    else:
        for options in dict.fromkeys([(), *(each.options for each in chosen)]):

            def launch(options: Options = options) -> int:
                return _launch(model, options, chosen, answer)

            code = code or in_child(launch, ends)
    # Neither threads nor exit handlers of the tree may outlast the checks.
    os._exit(0 if code == NOT_STARTED else code)


def in_child(run: Callable[[], int], ends: float) -> int:
    """Run a function in a fork of this process; return what it returns, or end as it ends."""
    # The thread that ends this process in time is not in the child, which would wait for it.
    faulthandler.cancel_dump_traceback_later()
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(max(ends - time.monotonic(), 1), exit=True)
        code = 1
        try:
            code = run()
        except BaseException:  # noqa: BLE001  # a child must never return
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def start(model: Path, options: Options) -> Company:
    """Start a server that is launched with further options."""
    sizes = {"chunked_prefill_size": CHUNK, "max_total_tokens": POOL}
    return Company(Engine(str(model), sizes, **dict(options)), models.VOCABULARY)


def _launch(
    model: Path, options: Options, chosen: Sequence[Scenario], answer: protocol.Answer
) -> int:
    """Start a server, and run the scenarios that need its options."""
    if not options:
        answer({"begins": STARTS})
    try:
        company = start(model, options)
    except BaseException as error:  # noqa: BLE001  # a server that cannot start says nothing
        if not options:
            _give_up(answer, chosen, error)
            return NOT_STARTED
        reason = str(error)
        if not isinstance(error, NotApplicable):
            names = ", ".join(name for name, _ in options)
            reason = f"the server does not start with {names}: {told(error)}"
    else:
        reason = ""
        if not options:
            answer({"verdict": "pass", "message": STARTS_MEANING})
    for each in chosen:
        if each.options != options:
            continue
        answer({"begins": each.id})
        if reason:
            answer(_not_applicable(reason))
            continue
        event, ended = verdict(each, company)
        reason = f"the server ended in {each.id}" if ended else ""
        answer(event)
    return 0


def _give_up(answer: protocol.Answer, chosen: Sequence[Scenario], error: BaseException) -> None:
    """Answer that no server starts."""
    reason = "the server does not start here"
    answer({"begins": STARTS})
    answer(_not_applicable(f"{reason}: {told(error)}"))
    for each in chosen:
        answer({"begins": each.id})
        answer(_not_applicable(reason))


def verdict(scenario: Scenario, company: Company) -> tuple[dict[str, Any], bool]:
    """Run one scenario; return what to report of it, and whether the server is of no more use.

    One that fails while kernels are at work that a patched tree cannot help is run again without
    what they may do. If it holds then, they are what does not cover it.
    """
    uncovered.noted.clear()
    unasked = company.afresh()
    event, ended = _run(scenario, company)
    if ended or event["verdict"] != "fail" or not uncovered.noted:
        return event, ended
    reasons = "; ".join(sorted(uncovered.noted))
    with uncovered.covered():
        again, ended = _run(scenario, unasked)
    if again["verdict"] == "pass":
        return _not_applicable(f"not covered: {reasons}: {event['message']}"), ended
    return again, ended


def _run(scenario: Scenario, company: Company) -> tuple[dict[str, Any], bool]:
    company.compared = 0
    try:
        scenario.run(company)
    except NotApplicable as reason:
        return _not_applicable(str(reason)), False
    except Failed as failure:
        return {
            "verdict": "fail",
            "message": str(failure),
            "expected": failure.expected,
            "found": failure.found,
            "code": failure.code,
        }, False
    except BaseException as error:  # noqa: BLE001  # whatever the tree's code raises is a finding
        if is_missing(error):
            return _not_applicable(f"not run: {told(error)}"), True
        return {"verdict": "fail", "message": told(error), "code": _where(error)}, True
    told_of = f"{scenario.meaning} ({company.compared} answers)"
    return {"verdict": "pass", "message": told_of}, False


def is_missing(error: BaseException) -> bool:
    """Report whether the simulation lacks what the tree's code asks for."""
    if isinstance(error, ImportError | NotImplementedError):
        return True
    named = ("is not simulated", "'_OpNamespace'")
    return isinstance(error, AttributeError) and any(each in str(error) for each in named)


def _not_applicable(message: str) -> dict[str, Any]:
    return {"verdict": "not-applicable", "message": message[:2000]}


def told(error: BaseException) -> str:
    """Name an error; one that says nothing itself, by the line that raised it."""
    where = "" if str(error) else _where(error).rpartition("\n")[2]
    return f"{type(error).__name__}: {str(error) or where}"


def _where(error: BaseException) -> str:
    """Show the deepest lines of the tree that an error came to."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = f"{os.sep}sglang{os.sep}"
    deepest = [each for each in frames if inside in each.filename][-3:]
    return "\n".join(
        f"{each.filename.rpartition(inside)[2]}:{each.lineno} in {each.name}: {each.line}"
        for each in deepest
    )


if __name__ == "__main__":
    main()
