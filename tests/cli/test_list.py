from __future__ import annotations

import json

from tests.engine.package import run
from tests.upstream.program import SEAMS


def test_one_line_a_seam_in_order() -> None:
    done = run("list")
    assert (done.code, done.stderr) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.stdout.decode().splitlines()]
    assert tuple(name for name, _ in rows) == SEAMS
    assert all(summary[0].isupper() and summary.endswith(".") for _, summary in rows)


def test_json() -> None:
    done = run("list", "--format", "json")
    assert done.code == 0
    rows = json.loads(done.stdout)
    assert tuple(row["seam"] for row in rows) == SEAMS
    assert all(row.keys() == {"seam", "summary"} for row in rows)
