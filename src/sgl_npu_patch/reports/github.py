"""Print what is to be acted on as workflow commands, which GitHub shows as annotations."""

from __future__ import annotations

from sgl_npu_patch.reports.codec import Document
from sgl_npu_patch.reports.formats import Target
from sgl_npu_patch.reports.matrix import headline, read_matrix, remarks
from sgl_npu_patch.reports.plain import visible


def render(document: Document, target: Target) -> str:
    """Return one annotation a trouble, and one that counts.

    GitHub shows ten errors of a step and hides the rest, so the same trouble in several trees is
    one annotation. What the baseline has is a notice.
    """
    matrix = read_matrix(document)
    commands = [
        _command("error", "new since the baseline", f"{change}\n{change.commit}".rstrip())
        for change in matrix.changes
    ]
    for remark in remarks(matrix):
        if remark.serious:
            place = {}
            if remark.site is not None:
                place["file"] = remark.site.path.as_posix()
                if remark.site.line:
                    place["line"] = str(remark.site.line)
            told = [f"in {name}" for name in remark.names] + list(remark.lines)
            level = "notice" if remark.known else "error"
            commands.append(_command(level, remark.title, "\n".join(told), **place))
    return "\n".join([*commands, _command("notice", "sgl-npu-patch", headline(matrix))]) + "\n"


def _command(level: str, title: str, message: str, **properties: str) -> str:
    given = {**properties, "title": title}
    parameters = ",".join(f"{key}={_property(value)}" for key, value in given.items())
    return f"::{level} {parameters}::{_data(message)}"


def _data(text: str) -> str:
    return visible(text, "\n").replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")
