"""Give tests documents as `matrix` makes them, of small trees that hold each kind of result."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from sgl_npu_patch import __version__
from sgl_npu_patch.codemods import SERIES
from sgl_npu_patch.engine.errors import Site
from sgl_npu_patch.engine.model import Result
from sgl_npu_patch.engine.plan import make_plan
from sgl_npu_patch.reports.codec import check_documents, tree_document
from sgl_npu_patch.reports.diff import render_diff
from tests.helpers import COMMON, ROOT, Files, MemoryTree, package

HEADER = {"schema": 1, "tool": {"name": "sgl-npu-patch", "version": __version__}}

CONFLICTING: Files = {COMMON: "def is_npu():\n    return False\n"}

CHECKS = (
    Result(
        id="sampler.draws",
        seam="sampler",
        kind="behaviour",
        verdict="fail",
        meaning="A neighbour changes nothing.",
        message="expected a token of its own, found its neighbour's",
        site=Site(ROOT / "srt/layers/sampler.py", 7, "Sampler.forward"),
        expected="a token of its own",
        found="its neighbour's",
        code="draw(a, b)\n  == draw(b, a)",
        action="see the log",
    ),
    Result(
        id="sampler.compiles",
        seam="sampler",
        kind="static",
        verdict="pass",
        meaning="Every file compiles.",
        message="Every file compiles.",
    ),
    Result(
        id="npu_ops.rebinds",
        seam="npu_ops",
        kind="behaviour",
        verdict="not-applicable",
        meaning="Operators are rebound.",
        message="withheld: unsafe",
    ),
    Result(
        id="series.changes_nothing_else",
        seam="",
        kind="static",
        verdict="pass",
        meaning="Nothing else changes.",
        message="Nothing else changes.",
    ),
)


def judged(name: str, changes: Files | None = None) -> dict[str, Any]:
    """Judge a small package and give its document, with the diff of what would change."""
    return {**json.loads(_judged(tuple((changes or {}).items()))), "name": name}


@cache
def _judged(changes: tuple[tuple[str, str | bytes | None], ...]) -> str:
    files = {ROOT / path: data for path, data in package(dict(changes)).items()}
    tree = MemoryTree(files, label="small")
    plan = make_plan(tree, SERIES)
    diff = render_diff(plan.changes, PurePosixPath("fork")).decode()
    return json.dumps({**tree_document(tree, plan), "diff": diff})


def failed(name: str, message: str) -> dict[str, Any]:
    """Give the document of a tree that cannot be judged."""
    tree = {"path": name, "version": None, "revision": None}
    nothing: dict[str, Any] = {"outcomes": [], "changed": [], "added": [], "copies": []}
    return {"name": name, **HEADER, "tree": tree, **nothing, "error": {"message": message}}


def matrix(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Give the document of a run."""
    return {**HEADER, "results": list(results), "changes": [], **more}


def sample() -> dict[str, Any]:
    """Give a run with a tree of each kind."""
    checked = judged("v0.5.12")
    checked["checks"] = check_documents(CHECKS)
    native = judged("v0.5.13")
    native["outcomes"] = [
        {**outcome, "status": "upstream", "gaps": ["mean_dtype", "top_p_dtype"][:number]}
        for number, outcome in enumerate(native["outcomes"])
    ]
    native["gaps"] = [
        {"gap": gap, "seam": "npu_ops", "meaning": f"{gap} is wrong.", "remedy": f"close {gap}"}
        for gap in ("mean_dtype", "top_p_dtype")
    ]
    native["diff"] = ""
    old = judged("v0.5.9")
    for number, status in enumerate(("withheld", "not-needed", "already")):
        old["outcomes"][number] |= {"status": status, "reason": f"reason of {status}"}
    old["outcomes"][2]["outdated"] = True
    return matrix(
        checked,
        native,
        old,
        judged("main", CONFLICTING),
        judged("release/fork", CONFLICTING),
        failed("v0.5.2", "this SGLang has no deterministic inference"),
    )


def with_baseline() -> dict[str, Any]:
    """Give the same run compared with a baseline, which `main`'s conflict and v0.5.2 are in."""
    change = {
        "name": "release/fork",
        "seam": "device_dispatch",
        "before": "pending",
        "after": "conflict",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "date": "2026-01-02T03:04:05+00:00",
        "subject": "Move the dispatch elsewhere",
        "diff": "-def get_dispatch_device_backend():\n+def elsewhere():\n",
    }
    failed = {
        "name": "v0.5.12",
        "seam": "check sampler.draws",
        "before": "missing",
        "after": "fail",
    }
    changes = [{"revision": None, **each} for each in (change, failed)]
    return {**sample(), "baseline": "statuses.json", "changes": changes}


HOSTILE = (
    "<script>hacked=1</script><img src=x onerror=hacked=1>]]>\"'&amp;%0A`|\\|``` @all #1 "
    "\r\n::error title=x::forged\n##[add-mask]x\n\n```\n</details></code>"
    "\x1b[31m\x00\x07\x9b\u202e\udcff\ufffe "
    "{{ 7 * 7 }} {% x %} [link](javascript:hacked=1) https://x.invalid ${x} =cmd()"
)


def hostile() -> dict[str, Any]:
    """Give the sample with hostile text wherever text may come from a tree or a repository."""
    document = copy.deepcopy(with_baseline())
    for number, result in enumerate(document["results"]):
        result["name"] = f"{number} {HOSTILE}"
        result["tree"] = {"path": HOSTILE, "version": HOSTILE, "revision": HOSTILE}
        if "diff" in result:
            result["diff"] += f"+{HOSTILE}\n"
        if "error" in result:
            result["error"]["message"] = HOSTILE
        for outcome in result["outcomes"]:
            outcome["reason"] = HOSTILE
            outcome["sites"] = [{"path": HOSTILE, "line": 3, "symbol": HOSTILE}]
            outcome["gaps"] = [HOSTILE for _ in outcome["gaps"]]
            result["gaps"] = [dict.fromkeys(("gap", "seam", "meaning", "remedy"), HOSTILE)]
            if "evidence" in outcome:
                places = {"where": outcome["sites"]}
                outcome["evidence"] = dict.fromkeys(outcome["evidence"], HOSTILE) | places
        for check in result.get("checks", ()):
            texts = ("message", "meaning", "expected", "found", "code", "action")
            check.update(dict.fromkeys(texts, HOSTILE))
            check["site"] = {"path": HOSTILE, "line": 3, "symbol": HOSTILE}
    moved, failed = document["changes"]
    moved |= {"name": document["results"][4]["name"], "subject": HOSTILE, "diff": HOSTILE}
    failed["name"] = document["results"][0]["name"]
    return document
