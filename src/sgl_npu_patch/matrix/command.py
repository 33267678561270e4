"""Run `matrix`: select trees, judge them, compare them with a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgl_npu_patch.engine.errors import UsageError
from sgl_npu_patch.matrix import selection
from sgl_npu_patch.matrix.judge import Checks, Judge, Options
from sgl_npu_patch.matrix.run import judge_trees, processors
from sgl_npu_patch.matrix.selection import Wanted

if TYPE_CHECKING:
    from sgl_npu_patch.matrix.baseline import Known
Watch = Callable[[int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The trees that the command line asks for; ``kinds`` says which kinds came first."""

    repository: str | None
    kinds: Sequence[str]
    revs: Sequence[str]
    releases: Sequence[str]
    trees: Sequence[str]
    first_parent: bool
    touching: bool


def matrix(
    asked: Asked,
    *,
    checks: Checks,
    diff: bool,
    baseline: Path | None,
    write_baseline: bool,
    jobs: int | None,
    cache: bool,
    watch: Watch,
) -> dict[str, Any]:
    """Judge all trees, compare them with the baseline, and return the document.

    Args:
        diff: keep what `apply` would change in each tree.
        watch: is given the number of trees, and then told how many are done.

    Raises:
        Refused: what is asked for cannot be found.
        UsageError: the options do not go together.
    """
    if write_baseline and baseline is None:
        raise UsageError("--write-baseline needs --baseline FILE, which says where to")
    before = None
    if baseline is not None:
        from sgl_npu_patch.matrix import baseline as known

        before = None if write_baseline else known.read(baseline)
    with Judge(Options(checks=checks, diff=diff, cache=cache)) as judge:
        wanted = _select(asked, judge)
        with watch(len(wanted)) as progress:
            document = judge_trees(judge, wanted, jobs or processors(), progress)
            if before is not None:
                changes = known.compare(before, document)
                document |= {"baseline": str(baseline), "changes": changes}
                if asked.repository:
                    _blame(judge, asked.repository, before, document)
    if write_baseline and baseline is not None:
        known.write(baseline, document["results"])
    return document


def _blame(judge: Judge, place: str, before: Mapping[str, Known], document: dict[str, Any]) -> None:
    from sgl_npu_patch.matrix.baseline import facts_of
    from sgl_npu_patch.matrix.blame import blame

    results = {result["name"]: result for result in document["results"]}
    good = [
        (seam, fact, revision)
        for facts, revision in (
            *((each.facts, each.revision) for each in before.values()),
            *((facts_of(each), each["tree"]["revision"]) for each in results.values()),
        )
        if revision
        for seam, fact in facts.items()
    ]
    with Judge(replace(judge.options, checks="", diff=False)) as other:
        blame(other, place, document["changes"], good)


def _select(asked: Asked, judge: Judge) -> tuple[Wanted, ...]:
    if not asked.kinds:
        raise UsageError("nothing is asked for: give --revs, --releases or --trees")
    if asked.repository is not None and "revs" not in asked.kinds:
        raise UsageError(f"which revisions of {asked.repository}? give --revs 'v*', or --trees")
    ranges = any(".." in pattern for pattern in asked.revs)
    if (asked.first_parent or asked.touching) and not ranges:
        raise UsageError("--first-parent and --touching are about ranges: give --revs A..B")
    wanted: list[Wanted] = []
    for kind in asked.kinds:
        if kind == "revs":
            wanted += _revisions(asked, judge)
        elif kind == "releases":
            from sgl_npu_patch.matrix.releases import select_releases

            wanted += select_releases(asked.releases)
        else:
            wanted += selection.select_folders(asked.trees)
    return selection.once(wanted)


def _revisions(asked: Asked, judge: Judge) -> list[Wanted]:
    if not asked.repository:
        raise UsageError("--revs needs a git repository: sgl-npu-patch matrix REPO --revs 'v*'")
    repository = judge.repository(asked.repository)
    paths: Sequence[str] = ()
    if asked.touching:
        ends = selection.ends_of(asked.revs)
        paths = selection.files_read(repository, ends)
    return list(
        selection.select_revisions(
            repository, asked.revs, first_parent=asked.first_parent, paths=paths
        )
    )
