"""Parse code for readers of what is bound, to whom an annotation says nothing."""

from __future__ import annotations

import ast


def parse(text: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Parse a file, with annotated assignments outside of class bodies as plain ones.

    What a class annotates are its fields, so these stay as they are.

    Raises:
        SyntaxError, ValueError, RecursionError: as `ast.parse`.
    """
    module = ast.parse(text, filename)
    for node in ast.walk(module):
        if not isinstance(node, ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                statements = getattr(node, field, None)
                if isinstance(statements, list):
                    statements[:] = map(_plain, statements)
    return module


def _plain(statement: ast.stmt) -> ast.stmt:
    if not isinstance(statement, ast.AnnAssign) or statement.value is None:
        return statement
    return ast.copy_location(ast.Assign([statement.target], statement.value), statement)
