"""Every reported case of queued messages (d), databases (g) and odd input (h) is a test, or a line that says why not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

IDS = """
d01 d02 d04 d06 d08 d10 d12 d14 d15 d17 d18 d20 d21 d22 d24 d26 d27
g01 g03 g05 g07 g09 g11 g13 g15 g17 g19 g21
h01 h02 h03 h05 h06 h07 h09 h11 h13 h15 h17 h19 h21 h23 h24
""".split()
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
