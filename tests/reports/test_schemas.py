"""What machines read is valid by the schema of its format."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import sarif_pydantic
import xmlschema
from jsonschema import Draft202012Validator

from sgl_npu_patch.reports.codec import check_documents
from sgl_npu_patch.reports.formats import Kind, Target
from sgl_npu_patch.reports.formats import render as render_as
from tests.reports.documents import CHECKS, hostile, judged, matrix, sample, with_baseline
from tests.upstream.program import program
from tests.upstream.releases import release_tree

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
JUNIT = xmlschema.XMLSchema(str(Path(__file__).parent / "junit.xsd"))

CHECKED = {**judged("tree"), "checks": check_documents(CHECKS)}
DOCUMENTS = {
    "nothing": matrix(),
    "sample": sample(),
    "baseline": with_baseline(),
    "hostile": hostile(),
}


def render(form: str, document: object, kind: Kind = "matrix") -> str:
    return render_as(form, kind, document, Target())


each = pytest.mark.parametrize("document", [*DOCUMENTS.values()], ids=[*DOCUMENTS])


def strict(schema: Any) -> Any:
    """Allow no key that the schema does not describe, so that none is forgotten in it."""
    schema = copy.deepcopy(schema)
    for definition in _objects(schema):
        definition["additionalProperties"] = False
    return schema


def _objects(schema: Any) -> list[dict[str, Any]]:
    found = []
    if isinstance(schema, dict):
        found += [schema] if schema.get("type") == "object" else []
        for value in schema.values():
            found += _objects(value)
    return found


def check(content: Any, definition: str) -> None:
    schema = strict(SCHEMA)
    del schema["anyOf"]
    Draft202012Validator({**schema, "$ref": f"#/$defs/{definition}"}).validate(content)
    Draft202012Validator(SCHEMA).validate(content)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert len(_objects(SCHEMA)) > 10


@each
def test_json(document: dict[str, Any]) -> None:
    check(json.loads(render("json", document)), "matrix")
    assert json.loads(render("json", document)) == json.loads(json.dumps(document))


@pytest.mark.parametrize("version", ["0.5.3rc2", "0.5.12.post1", "0.5.23"])
def test_json_of_releases(version: str) -> None:
    done = program("status", release_tree(version), "--format", "json")
    check(json.loads(done.stdout), "document")
    done = program("apply", "--check", "--diff", release_tree(version), "--format", "json")
    check(json.loads(done.stdout), "document")


def test_json_of_checks_and_seams() -> None:
    tree = release_tree("0.5.23")
    done = program("verify", tree, "--static", "--only", "backend_lists", "--format", "json")
    check(json.loads(done.stdout), "document")
    check(json.loads(program("list", "--format", "json").stdout), "seams")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document["results"][0]["outcomes"][0].update(status="fine"),
        lambda document: document["results"][0]["outcomes"][0]["sites"][0].update(line="3"),
        lambda document: document["results"][0].pop("name"),
        lambda document: document["results"][3]["outcomes"][3].update(status="applied"),
        lambda document: document.update(schema=2),
    ],
)
def test_the_schema_refuses_what_is_wrong(spoil: Any) -> None:
    document = json.loads(json.dumps(sample()))
    spoil(document)
    assert not Draft202012Validator(SCHEMA).is_valid(document)


@each
def test_junit(document: dict[str, Any]) -> None:
    JUNIT.validate(render("junit", document))


def test_junit_of_checks() -> None:
    JUNIT.validate(render("junit", CHECKED, "checks"))


@each
def test_sarif(document: dict[str, Any]) -> None:
    check_sarif(render("sarif", document))


def test_sarif_of_checks() -> None:
    check_sarif(render("sarif", CHECKED, "checks"))


def check_sarif(rendered: str) -> None:
    """Check by the library's model, and what the standard asks for and the model does not."""
    sarif_pydantic.Sarif.model_validate_json(rendered)
    (run,) = json.loads(rendered)["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        assert (result["level"] != "none") == (result["kind"] == "fail")
        for place in result.get("locations", ()):
            uri = place["physicalLocation"]["artifactLocation"]["uri"]
            assert uri.isascii()
            assert not set(uri) & set(' "<>\\^`{|}\r\n')
            assert place["physicalLocation"].get("region", {"startLine": 1})["startLine"] >= 1
