"""Run the scenarios on one tree's scheduler, as `protocol` describes.

Never run by hand: `run` has it started, in an environment with the simulated NPU.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

from sgl_npu_patch.verify import protocol
from sgl_npu_patch.verify.behaviour import Failed
from sgl_npu_patch.verify.findings import NotApplicable
from sgl_npu_patch.verify.server import models
from sgl_npu_patch.verify.server.company import Company
from sgl_npu_patch.verify.server.drive import Engine
from sgl_npu_patch.verify.server.run import STARTS, STARTS_MEANING
from sgl_npu_patch.verify.server.scenarios import CHUNK, POOL, SCENARIOS, Scenario


def main() -> None:
    """Run what the request asks for."""
    request, answer = protocol.begin()
    only = {*request["only"]}
    chosen = [each for each in SCENARIOS.values() if not only or each.id in only]
    declared = [(STARTS, STARTS_MEANING), *((each.id, each.meaning) for each in chosen)]
    answer({"declared": [{"id": i, "seam": "", "meaning": m, "gap": ""} for i, m in declared]})
    answer({"begins": STARTS})
    try:
        folder = models.make(request["family"], Path(request["scratch"]) / "model")
        engine = Engine(str(folder), chunked_prefill_size=CHUNK, max_total_tokens=POOL)
        company = Company(engine, models.VOCABULARY)
    except BaseException as error:  # noqa: BLE001  # a server that cannot start says nothing
        answer(_not_applicable(f"the server does not start here: {_told(error)}"))
        reason = "the server does not start here"
    else:
        answer({"verdict": "pass", "message": STARTS_MEANING})
        reason = ""
    for each in chosen:
        answer({"begins": each.id})
        if reason:
            answer(_not_applicable(reason))
            continue
        event, ended = verdict(each, company)
        reason = f"the server ended in {each.id}" if ended else ""
        answer(event)
    # Neither threads nor exit handlers of the tree may outlast the checks.
    os._exit(0)


def verdict(scenario: Scenario, company: Company) -> tuple[dict[str, Any], bool]:
    """Run one scenario; return what to report of it, and whether the server is of no more use."""
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
            return _not_applicable(f"not run: {_told(error)}"), True
        return {"verdict": "fail", "message": _told(error), "code": _where(error)}, True
    told = f"{scenario.meaning} ({company.compared} answers)"
    return {"verdict": "pass", "message": told}, False


def is_missing(error: BaseException) -> bool:
    """Report whether the simulation lacks what the tree's code asks for."""
    if isinstance(error, ImportError | NotImplementedError):
        return True
    named = ("is not simulated", "'_OpNamespace'")
    return isinstance(error, AttributeError) and any(each in str(error) for each in named)


def _not_applicable(message: str) -> dict[str, Any]:
    return {"verdict": "not-applicable", "message": message[:2000]}


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


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
