"""Each row of "Works with" names a test that exists, or the day on which somebody tried it."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs import pages
from tests.programs import ROOT

ROWS = [
    line
    for line in pages.read("reference/works-with.md").splitlines()
    if line.startswith("|") and not re.match(r"\|[-|]+\|$", line) and not line.endswith("| test |")
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_evidence(row: str) -> None:
    evidence = row.strip("| ").rpartition("| ")[2]
    if re.fullmatch(r"by hand, \d{4}-\d\d-\d\d", evidence):
        return
    path, _, name = evidence.strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, functions)}
