from __future__ import annotations

import json

from tests.engine.package import run
from tests.upstream.program import HARDENING, SEAMS


def test_one_line_a_seam_in_order() -> None:
    done = run("list")
    assert (done.code, done.stderr) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.stdout.decode().splitlines()]
    assert tuple(name for name, _ in rows) == SEAMS
    assert all(summary[0].isupper() and summary.endswith(".") for _, summary in rows)


def test_the_series_hardening_comes_first_among_all() -> None:
    for series, seams in {"hardening": HARDENING, "all": (*HARDENING, *SEAMS)}.items():
        done = run("list", "--series", series)
        assert tuple(line.split()[0] for line in done.stdout.decode().splitlines()) == seams


def test_json() -> None:
    done = run("list", "--format", "json")
    assert done.code == 0
    assert tuple(row["seam"] for row in json.loads(done.stdout)) == SEAMS


def test_json_names_the_series_of_each_seam() -> None:
    rows = json.loads(run("list", "--series", "all", "--format", "json").stdout)
    assert [row["series"] for row in rows] == [
        *("hardening" for _ in HARDENING),
        *("deterministic" for _ in SEAMS),
    ]
