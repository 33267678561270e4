from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch.kit import doctor, facts
from tests.engine.package import COMMON, MODE, build, run, snapshot
from tests.kit.simulated import interpreter
from tests.reports.test_schemas import check
from tests.upstream.program import Run
from tests.verify.checked import lay_out, original, patched

MISSING = {f"extension.{name}": "wrong" for name in facts.REQUIRED}
GRAPHS = {f"extension.{name}": "note" for name in facts.FOR_GRAPHS}
BLIND = dict.fromkeys(
    (
        "device.available",
        "extension.package",
        "schemas.compared",
        "dispatch.enable",
        "cann.version",
        "sampler.float64",
        "sampler.uint64",
    ),
    "unseen",
)
ATTENTION = "npu_fused_infer_attention_score_batch_invariant"
# The simulation is of a torch_npu for another torch, and there is no CANN.
SIMULATED = {"torch_npu.torch": "note", "cann.version": "note"}

MACHINES: dict[str, tuple[dict[str, Any], int, dict[str, str]]] = {
    "extension 2.0.0": ({}, 0, SIMULATED),
    "extension 1.0.0": (
        {"extension": "1.0.0", "torch_npu": "2.8.0.post2"},
        0,
        {
            **SIMULATED,
            **GRAPHS,
            "schemas.npu_fused_infer_attention_score.out": "note",
            "schemas._npu_fused_infer_attention_score_get_max_workspace.default": "note",
        },
    ),
    "a package of the same name": (
        {"extension": "another"},
        1,
        {
            **SIMULATED,
            **MISSING,
            **GRAPHS,
            "extension.package": "wrong",
            "schemas.npu_fused_infer_attention_score.default": "wrong",
            "schemas.npu_fused_infer_attention_score.out": "note",
            "schemas._npu_fused_infer_attention_score_get_max_workspace.default": "note",
            "dispatch.enable": "wrong",
        },
    ),
    "several things wrong": (
        {
            "missing": ["npu_mm_batch_invariant"],
            "environment": {"ASCEND_USE_FIA": None, "HCCL_DETERMINISTIC": "false"},
            "unsupported": "float64",
        },
        1,
        {
            **SIMULATED,
            "extension.npu_mm_batch_invariant": "wrong",
            "dispatch.enable": "wrong",
            "environment.HCCL_DETERMINISTIC": "note",
            "sampler.float64": "wrong",
        },
    ),
    "an argument that is passed is not taken": (
        {"schemas": {ATTENTION: ["Tensor? query_rope=None, ", ""]}},
        1,
        {**SIMULATED, "schemas.npu_fused_infer_attention_score.default": "wrong"},
    ),
    "an argument that is not passed is not taken": (
        {"schemas": {ATTENTION: ["Tensor? pse_shift=None, ", ""]}},
        0,
        {**SIMULATED, "schemas.npu_fused_infer_attention_score.default": "note"},
    ),
    "a linear layer that passes by the products": (
        {"own_linear": True},
        1,
        {
            **SIMULATED,
            "dispatch.aten::linear": "note",
            "dispatch.layers.linear": "wrong",
            "dispatch.layers.linear_with_bias": "wrong",
        },
    ),
    "another default": (
        {"schemas": {ATTENTION: ["float scale=1.0", "float scale=0.5"]}, "unsupported": "uint64"},
        1,
        {
            **SIMULATED,
            "schemas.npu_fused_infer_attention_score.default": "wrong",
            "sampler.uint64": "wrong",
        },
    ),
    "no device": (
        {"device": False},
        4,
        {
            **SIMULATED,
            **dict.fromkeys(
                (
                    "device.available",
                    "dispatch.layers",
                    "cann.version",
                    "sampler.float64",
                    "sampler.uint64",
                ),
                "unseen",
            ),
        },
    ),
    "no torch": ({"absent": ["torch"]}, 1, {**BLIND, "torch.import": "wrong"}),
    "a torch_npu without CANN": (
        {"broken": ["torch_npu"]},
        1,
        {**BLIND, "torch_npu.import": "wrong"},
    ),
    "an extension that cannot be imported": (
        {"extension": "none", "broken": ["batch_invariant_ops"]},
        1,
        {
            **SIMULATED,
            **MISSING,
            **GRAPHS,
            "extension.package": "wrong",
            "schemas.npu_fused_infer_attention_score.default": "wrong",
            "schemas.npu_fused_infer_attention_score.out": "note",
            "schemas._npu_fused_infer_attention_score_get_max_workspace.default": "note",
            "dispatch.enable": "wrong",
        },
    ),
}


def examine(folder: Path, *arguments: str | Path, **machine: Any) -> Run:
    return run("doctor", *arguments, "--python", interpreter(folder, **machine))


def told(done: Run) -> dict[str, dict[str, str]]:
    return {fact["id"]: fact for fact in done.report["facts"]}


@pytest.mark.parametrize(("machine", "code", "expected"), MACHINES.values(), ids=[*MACHINES])
def test_machines(
    machine: dict[str, Any], code: int, expected: dict[str, str], tmp_path: Path
) -> None:
    done = examine(tmp_path, "--format", "json", **machine)
    found = {name: fact["verdict"] for name, fact in told(done).items()}
    assert {name: each for name, each in found.items() if each != "ok"} == expected
    assert done.code == code
    assert done.report["able"] is {0: True, 1: False, 4: None}[code]
    assert done.report["tree"] is None
    check(done.report, "doctor")
    if machine == {"broken": ["torch_npu"]}:
        broken = told(done)["torch_npu.import"]
        why = "ImportError: libhccl.so: cannot open shared object file: No such file"
        assert (broken["found"], broken["action"]) == (why, "repair torch_npu in this Python")
    if not machine:
        check_what_the_mode_changes(told(done))


def check_what_the_mode_changes(found: dict[str, dict[str, str]]) -> None:
    for name in facts.ATEN:
        before, inside = found[f"dispatch.aten::{name}"]["found"].split(", in the mode ")
        assert before in ("registered in device.py", "no kernel of its own")
        assert inside == "registered in npu_ops.py"
    owners = ("torch.ops.npu", "torch_npu")
    for name in [f"{owner}.{name}" for owner in owners for name in facts.REBOUND]:
        assert found[f"dispatch.{name}"]["found"] == "replaced in the mode, and given back"
    calls = found["dispatch.layers.linear"]["found"]
    assert calls == "calls npu_matmul_batch_invariant"
    assert found["device.available"]["found"] == "1 x Ascend910B (simulated)"
    groups = [name.partition(".")[0] for name in found]
    assert groups == sorted(groups, key=facts.GROUPS.index)


def test_what_is_told_and_what_to_do(tmp_path: Path) -> None:
    machine = {"extension": "another", "environment": {"ASCEND_USE_FIA": "0"}}
    done = examine(tmp_path, **machine)
    assert (done.code, done.stderr) == (1, "")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "This machine cannot run the result: 8 wrong, 0 not seen"
    rows = {line.split()[0]: line for line in lines[3:] if line}
    assert "Thinking Machines' package of that import name" in rows["extension.package"]
    assert rows["extension.npu_mm_batch_invariant"].split()[1:] == ["WRONG", "missing"]
    assert "lacks npu_mm_batch_invariant" in rows["dispatch.enable"]
    told = "note     another value: the server makes it 1; attention runs the operator that has"
    assert told in rows["environment.ASCEND_USE_FIA"]
    text = " ".join(" ".join(lines).split())
    assert "next: uninstall it and install Ascend's extension: the AscendC operator pack" in text


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("x-linux/ascend_toolkit_install.info", "package_name=x\nversion=8.2.RC1\n", "8.2.RC1"),
        ("version.cfg", "# x\nruntime_running_version=[7.3.0.1.231:8.0.RC2]\n", "8.0.RC2"),
        ("version.cfg", "# nothing\n", None),
    ],
)
def test_cann(
    variable: str,
    name: str,
    text: str,
    version: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "cann"
    (home / name).parent.mkdir(parents=True)
    (home / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv(variable, str(home))
    seen = facts.Seen()
    facts._cann(seen, facts.UNSEEN)
    (fact,) = seen.facts
    assert seen.versions == ({} if version is None else {"cann": version})
    assert fact.verdict == ("unseen" if version is None else "ok")
    assert str(tmp_path) not in fact.found


def test_a_tree_is_judged_and_not_executed(tmp_path: Path) -> None:
    mark = "raise SystemExit('the tree was executed')\n"
    tree = tmp_path / "tree"
    lay_out({**original(), "__init__.py": mark.encode()}, tree)
    before = snapshot(tree)
    (tmp_path / "run").mkdir()
    done = examine(tmp_path / "run", tree, "--format", "json", absent=["torch"])
    found = told(done)
    assert done.code == 1
    assert found["tree.npu_ops"]["verdict"] == "wrong"
    assert found["tree.npu_ops"]["found"] == "not patched"
    # Nothing in this tree would set it.
    assert found["environment.HCCL_DETERMINISTIC"]["verdict"] == "wrong"
    assert found["environment.HCCL_DETERMINISTIC"]["action"].startswith(
        "set HCCL_DETERMINISTIC=strict, so that collectives"
    )
    assert found["environment.HCCL_OP_EXPANSION_MODE"]["verdict"] == "ok"
    assert done.report["tree"]["path"] == str(tree)
    check(done.report, "doctor")
    lay_out({**patched(), "__init__.py": mark.encode()}, tree)
    done = examine(tmp_path / "run", tree, "--format", "json")
    assert done.code == 0
    assert told(done)["tree.npu_ops"]["found"] == "already"
    assert told(done)["environment.HCCL_DETERMINISTIC"]["verdict"] == "ok"
    assert snapshot(tree) != before


def test_the_trees_own_mode_is_entered_when_asked_for(tmp_path: Path) -> None:
    tree, empty = tmp_path / "tree", tmp_path / "run"
    empty.mkdir()
    package = build(tree, "sglang")
    assert run("apply", tree).code == 0
    common = package / COMMON
    text = common.read_text("utf-8").replace("return False", "return True")
    common.write_text(
        f"{text}\n\ndef is_cuda():\n    return False\n\n\nis_xpu = is_cuda\n", "utf-8"
    )
    done = examine(empty, tree, "--execute", "--format", "json")
    assert told(done)["dispatch.enable"]["verdict"] == "ok"
    assert done.code == 0, done.stdout
    mode = package / MODE
    mode.write_text(f"print('hello')\nraise ValueError('broken')\n{mode.read_text('utf-8')}")
    done = examine(empty, tree, "--execute", "--format", "json")
    assert told(done)["dispatch.enable"]["found"] == "ValueError: broken"
    assert run("doctor", "--execute").code == 2


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("raise SystemExit('no such library')", "ended with 1: no such library"),
        ("print('{')", "ended with 0"),
        ("import time; time.sleep(60)", "not done after 1 s"),
    ],
)
def test_a_process_without_an_answer(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SECONDS", 1)
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{program}\n", encoding="utf-8")
    python.chmod(0o755)
    done = run("doctor", "--python", python)
    assert (done.code, done.stdout) == (4, b"")
    assert said in done.stderr


def test_refusals(tmp_path: Path) -> None:
    done = run("doctor", "--python", tmp_path / "none")
    assert (done.code, "cannot be run: No such file" in done.stderr) == (4, True)
    assert run("doctor", tmp_path).code == 4
    assert run("doctor", "").code == 2


def test_the_command_itself_needs_no_torch(tmp_path: Path) -> None:
    python = interpreter(tmp_path, absent=["torch"])
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from sgl_npu_patch import cli\n"
        f"sys.argv = ['', 'doctor', '--format', 'json', '--python', {str(python)!r}]\n"
        "cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["versions"].keys() == {"python"}
