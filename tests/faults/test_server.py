"""Put faults into a server, and insist that its scenarios find them; needs the extra `server`."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from sgl_npu_patch.verify.server.scenarios import SCENARIOS
from tests.faults.fault import NEWEST
from tests.faults.named import FAULTS
from tests.faults.server import EQUIVALENT, SERVER, judge
from tests.faults.serving import replace as replaced


def test_each_fault_is_judged_by_one_scenario() -> None:
    for name, fault in SERVER.items():
        (check,) = fault.found_by
        assert check in SCENARIOS, name
        assert fault.release == NEWEST
    assert EQUIVALENT.keys() <= FAULTS.keys() - SERVER.keys()
    assert len({fault.edits for fault in SERVER.values()}) == len(SERVER)
    assert len(SERVER) + len(EQUIVALENT) >= 30


@pytest.mark.slow
def test_a_scenario_finds_each_fault() -> None:
    found = {each.id: each for each in judge(SERVER)}
    # A process that ended says nothing of a fault.
    assert [name for name, each in found.items() if each.lost] == []
    assert {n: each.verdict for n, each in found.items()} == dict.fromkeys(SERVER, "fail")


@pytest.mark.slow
def test_an_equivalent_fault_changes_no_answer() -> None:
    faults = {name: replace(FAULTS[name], found_by=("server.at_once",)) for name in EQUIVALENT}
    found = judge(faults)
    assert {each.id: each.verdict for each in found} == dict.fromkeys(EQUIVALENT, "pass")


OLD = """
from contextlib import contextmanager

class Kind:
    @staticmethod
    def one(): return 1
    def two(self, more=1): return 2 + more

@contextmanager
def three(): yield 3
"""
NEW = (
    OLD.replace("return 1", "return 10").replace("more=1", "more=2").replace("yield 3", "yield 30")
)


def test_a_fault_reaches_what_is_held_already(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("held_already")
    module.__file__ = "held_already.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(OLD, "held_already.py", "exec"), vars(module))
    held = module.__dict__["Kind"](), module.__dict__["three"]
    replaced("held_already", NEW)
    assert (held[0].one(), held[0].two()) == (10, 4)
    with held[1]() as three:
        assert three == 30
