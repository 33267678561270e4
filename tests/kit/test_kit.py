from __future__ import annotations

import ast
import getpass
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sgl_npu_patch import __version__, kit
from sgl_npu_patch.codemods.upstream.project import PROJECT
from sgl_npu_patch.engine import vendor
from sgl_npu_patch.kit import bits, facts
from sgl_npu_patch.kit.render import render_doctor, render_kit
from tests.engine.package import run, snapshot
from tests.kit.simulated import Measured, interpreter, measure
from tests.reports.test_schemas import check

FOLDER = Path(kit.__file__).parent
EVERY = dict.fromkeys(facts.OPERATORS, True)
NONE = dict.fromkeys(facts.OPERATORS, False)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Path]:
    """Run the kit once where one kernel fails."""
    folder = tmp_path_factory.mktemp("failing")
    return measure(folder, failing=["npu_mm_batch_invariant"]), folder


def test_the_kit_on_a_machine_whose_own_kernels_depend_on_the_batch(tmp_path: Path) -> None:
    done = measure(tmp_path)
    assert done.verdicts("on") == EVERY
    assert done.verdicts("off") == NONE
    assert done.code == 0, done.printed
    assert done.receipt["npu_ops"] == vendor.unmodified(PROJECT, vendor.render(PROJECT, "npu_ops"))
    assert done.receipt["versions"] == {
        "python": platform.python_version(),
        "torch": done.receipt["versions"]["torch"],
        "torch_npu": "2.10.0",
        "batch_invariant_ops": "2.0.0",
    }
    assert {claim["dtype"] for claim in done.receipt["claims"]} == set(bits.FLOATS)
    first = done.receipt["claims"][0]
    assert first["sizes"] == [2, 3]
    assert first["off"]["first"] | {"alone": "", "in_batch": ""} == {
        "size": 2,
        "place": 0,
        "element": 0,
        "elements": 16,
        "of": 16,
        "alone": "",
        "in_batch": "",
    }
    # The values were wrong, if they were far from those of the native operator.
    deviations = [claim["deviation"] for claim in done.receipt["claims"]]
    assert all(deviation is not None and deviation < 0.05 for deviation in deviations)
    assert "sglang.test.test_deterministic --test-mode single" in done.printed
    assert "--enable-deterministic-inference" in done.printed


def test_the_receipt_is_of_its_schema_and_names_nobody(failing: tuple[Measured, Path]) -> None:
    done, folder = failing
    check(done.receipt, "receipt")
    text = (folder / "receipt.json").read_text(encoding="utf-8")
    names = [platform.node(), getpass.getuser(), str(folder), os.sep, "someone"]
    assert [name for name in names if len(name) > 1 and name in text] == []
    assert os.sep not in text


@pytest.mark.parametrize(
    "kernels",
    [
        {
            "npu_mm_batch_invariant": ("mm", "addmm"),
            "npu_reduce_mean_batch_invariant": ("mean", "mean.dim"),
            "npu_rms_norm": ("add_rms_norm",),
        },
        {
            "npu_matmul_batch_invariant": ("matmul", "bmm"),
            "npu_log_softmax_batch_invariant": ("log_softmax",),
            "npu_fused_infer_attention_score_batch_invariant": ("fused_attention",),
        },
    ],
)
def test_kernels_that_depend_on_the_batch_are_found(
    kernels: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    done = measure(tmp_path, batch_dependent=[*kernels])
    assert done.code == 1
    operators = [operator for named in kernels.values() for operator in named]
    assert done.verdicts("on") == {**EVERY, **dict.fromkeys(operators, False)}
    for operator in operators:
        assert f"  WRONG {operator}, " in done.printed
    assert "differs as row 0 of 2" in done.printed


def test_a_kernel_that_depends_on_the_place_in_the_batch_is_found(tmp_path: Path) -> None:
    """The last of three, which is neither of another size nor at the beginning."""
    done = measure(tmp_path, "--sizes", "1", "3", last_row_differs=["npu_mm_batch_invariant"])
    assert done.verdicts("on") == {**EVERY, "mm": False, "addmm": False}
    (first, *_) = (c["on"]["first"] for c in done.receipt["claims"] if c["operator"] == "mm")
    assert (first["size"], first["place"]) == (3, 2)


def test_a_linear_layer_that_passes_by_the_products_is_found(tmp_path: Path) -> None:
    """And all else is as it must be, with version 1.0.0 of the extension too."""
    done = measure(tmp_path, own_linear=True, extension="1.0.0", torch_npu="2.8.0.post2")
    forms = {c["form"] for c in done.receipt["claims"] if not c["on"]["equal"]}
    assert forms == {"linear(x, w)", "linear(x, w, bias)"}
    assert done.code == 1


def test_a_kernel_that_fails_stops_nothing_else(failing: tuple[Measured, Path]) -> None:
    done, _ = failing
    assert done.code == 1
    assert done.verdicts("on") == {**EVERY, "mm": None, "addmm": None}
    assert done.verdicts("off") == NONE
    errors = {c["on"]["error"] for c in done.receipt["claims"] if "error" in c["on"]}
    assert errors == {"RuntimeError: the kernel failed, see ..."}


@pytest.mark.parametrize(
    ("machine", "code"),
    [
        ({"absent": ["torch"]}, 1),
        ({"device": False}, 4),
    ],
)
def test_without_a_device_nothing_is_compared(
    machine: dict[str, Any], code: int, tmp_path: Path
) -> None:
    done = measure(tmp_path, **machine)
    assert done.code == code
    assert done.receipt["claims"] == []
    assert "no device: nothing is compared" in done.printed
    check(done.receipt, "receipt")


def test_without_the_extension_only_the_native_kernels_are_measured(tmp_path: Path) -> None:
    """What stands beside the kit is not imported: it may be the extension's own source."""
    (tmp_path / "batch_invariant_ops").mkdir()
    beside = tmp_path / "batch_invariant_ops" / "__init__.py"
    beside.write_text("raise SystemExit('imported')\n", encoding="utf-8")
    done = measure(tmp_path, extension="none")
    assert done.code == 1
    assert done.verdicts("off") == NONE
    assert set(done.verdicts("on").values()) == {None}
    told = {fact["id"]: fact["found"] for fact in done.receipt["facts"]}
    assert told["extension.package"] == "not installed"


def test_the_kit_needs_nothing_but_itself(tmp_path: Path) -> None:
    """Without site-packages there is neither this package nor torch."""
    kit_file = tmp_path / "kit.py"
    assert run("kit", "-o", kit_file).code == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(kit_file)],
        check=False,
        capture_output=True,
        text=True,
        cwd=elsewhere,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "torch.import: not installed" in done.stdout
    assert [path.name for path in elsewhere.iterdir()] == ["receipt.json"]


def test_a_receipt_that_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    kit_file = tmp_path / "kit.py"
    assert run("kit", "-o", kit_file).code == 0
    command = [sys.executable, str(kit_file), "-o", str(tmp_path / "none" / "receipt.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written" in done.stderr


def test_a_reader_that_leaves_does_not_end_it(tmp_path: Path) -> None:
    kit_file = tmp_path / "kit.py"
    assert run("kit", "-o", kit_file).code == 0
    command = f"set -o pipefail; {sys.executable} -I -S {kit_file} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "facts\n", "")
    check(json.loads((tmp_path / "receipt.json").read_bytes()), "receipt")


def test_an_interrupted_run_leaves_no_receipt(tmp_path: Path) -> None:
    kit_file = tmp_path / "kit.py"
    kit_file.write_text(render_kit(), encoding="utf-8")
    command = [str(interpreter(tmp_path)), str(kit_file), "--width", "16"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("  ok    mm"):
                break
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    assert printed.endswith("interrupted; there is no receipt\n")
    assert not (tmp_path / "receipt.json").exists()


def test_the_kit_is_made_of_the_modules_as_they_are() -> None:
    text = render_kit()
    ast.parse(text, feature_version=(3, 10))
    namespace: dict[str, Any] = {"__name__": "kit", "__file__": "kit.py"}
    carried = text[: text.index("PACKAGE = ")]
    exec(carried, namespace)
    sources = namespace["SOURCES"]
    for name in ("npu_ops", "launch_guards"):
        assert sources.pop(name) == vendor.body(PROJECT, name)
    assert sources == {
        name: (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        for name in ("facts", "bits", "program")
    }
    assert namespace["VERSION"] == __version__
    assert carried in render_doctor()
    assert text == render_kit()


@pytest.mark.parametrize("name", ["facts", "bits", "program"])
def test_what_the_kit_carries_imports_little(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_bytes())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(str(node.module).partition(".")[0])
    allowed = {"torch", "torch_npu"} if name == "bits" else set()
    assert imported <= sys.stdlib_module_names | allowed


def test_every_operator_is_compared() -> None:
    compared = dict.fromkeys(operation.operator for operation in bits.OPERATIONS)
    assert tuple(compared) == facts.OPERATORS


def test_a_kit_replaces_a_kit_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "kit.py"
    done = run("kit", "-o", target)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.decode() == (
        f"wrote {target}; take it to a machine with an NPU and run: python kit.py\n"
    )
    written = target.read_bytes()
    assert written == render_kit().encode()
    older = written.replace(__version__.encode(), b"0.0.1")
    target.write_bytes(older)
    assert run("kit", "-o", target).code == 0
    assert target.read_bytes() == written
    other = tmp_path / "README.md"
    other.write_text("mine", encoding="utf-8")
    before = snapshot(tmp_path)
    for path, said in (
        (other, "exists and is no kit"),
        (tmp_path / "none" / "kit.py", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        done = run("kit", "-o", path)
        assert (done.code, said in done.stderr) == (4, True)
    assert run("kit").code == 2
    assert run("kit", "-o", "").code == 2
    assert snapshot(tmp_path) == before


def test_paths_and_names_are_left_out_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "someone")
    monkeypatch.setattr(platform, "node", lambda: "host-7")
    told = facts.brief(OSError("/usr/local/x of someone on host-7: C:\\y and ratio 1/2\nmore"))
    assert told == "OSError: ... of ... on ...: ... and ratio ..."
    assert facts.brief(ValueError()) == "ValueError"
    assert len(facts.brief(ValueError("x" * 1000))) < 200
