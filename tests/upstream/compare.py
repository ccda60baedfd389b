"""Run lionagi's own tests twice, with the stock Branch and with lionnb's, and compare.

    python tests/upstream/compare.py CHECKOUT [tests/session tests/operations …]

CHECKOUT is a checkout of lionagi with its tests; the lionagi that is tested is the installed one. A test that passes on
stock and fails on ours must be one of README.md's table, which names the clause that demands it. Exit status 0 if so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
DEFAULT = ["tests/session", "tests/operations"]


def explained() -> dict[str, str]:
    """Pattern of a test -> the clause that demands the difference; the rows of README.md's table."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \|$", (HERE / "README.md").read_text(), re.M)
    return dict(rows)


def run(tests: Path, paths: list[str], *, swap: bool) -> dict[str, str]:
    """Test -> outcome of one run, in a process of its own."""
    report = tests / f"report-{swap}.xml"
    env = {k: v for k, v in os.environ.items() if k != "LIONNB_SWAP"} | ({"LIONNB_SWAP": "1"} if swap else {})
    env |= {"LIONAGI_HOME": str(tests / "home"), "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}
    command = [sys.executable, "-m", "pytest", "-p", "turn_aware_plugin", "-p", "no:cacheprovider", "-q"]
    # their addopts ask for parallel workers and stop early; a test that deadlocks by design must not hold the rest
    options = ["-o", "addopts=", "--timeout", "30", "--timeout-method", "signal", f"--junitxml={report}"]
    subprocess.run([*command, *options, *paths], cwd=tests, env=env, check=False, stdout=subprocess.DEVNULL)
    return outcomes(report)


def outcomes(report: Path) -> dict[str, str]:
    """Test -> ``passed``, ``failed`` or ``skipped``."""
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        bad = any(case.find(tag) is not None for tag in ("failure", "error"))
        skipped = case.find("skipped") is not None
        name = f"{case.get('classname')}.{case.get('name')}".removeprefix("tests.")
        found[name] = "failed" if bad else "skipped" if skipped else "passed"
    return found


def main(checkout: str, *paths: str) -> int:
    """Print what differs, each with its explanation."""
    with tempfile.TemporaryDirectory(prefix="lionnb-upstream-") as folder:
        tests = Path(folder, "checkout")
        shutil.copytree(checkout, tests, ignore=shutil.ignore_patterns(".git", "node_modules", ".venv"))
        shutil.rmtree(tests / "lionagi", ignore_errors=True)  # the installed one is tested
        stock, ours = (run(tests, list(paths) or DEFAULT, swap=swap) for swap in (False, True))
    for name, found in (("stock", stock), ("lionnb", ours)):
        counts = {word: list(found.values()).count(word) for word in ("passed", "failed", "skipped")}
        print(f"{name:7} {counts}")
    clauses, unexplained = explained(), 0
    for name in sorted(n for n in stock if stock[n] != ours.get(n)):
        why = next((clause for pattern, clause in clauses.items() if fnmatch(name, pattern)), None)
        unexplained += why is None
        print(f"{stock[name]} → {ours.get(name, 'missing')}  {name}\n    {why or 'NOT EXPLAINED'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
