"""Every reported case of queued messages (d), databases (g) and odd input (h) is a test, or a line that says why not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

NUMBERS = {
    "d": (1, 2, 4, 6, 8, 10, 12, 14, 15, 17, 18, 20, 21, 22, 24, 26, 27),
    "g": (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21),
    "h": (1, 2, 3, 5, 6, 7, 9, 11, 13, 15, 17, 19, 21, 23, 24),
}
IDS = [f"{group}{number:02}" for group, numbers in NUMBERS.items() for number in numbers]
AN_ID = re.compile(r"\b[dgh]\d\d\b")
NO_TEST = re.compile(r"^([dgh]\d\d) .*does not apply", re.MULTILINE)


def test_every_case_stands_in_the_docstring_of_a_test_or_is_said_not_to_apply():
    named: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        module = ast.parse(path.read_text())
        named |= {*NO_TEST.findall(ast.get_docstring(module) or "")}
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                named |= {*AN_ID.findall(ast.get_docstring(node) or "")}
    assert sorted(set(IDS) - named) == []
