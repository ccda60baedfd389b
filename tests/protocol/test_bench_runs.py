"""The benchmark of steering runs, and has something to say of both databases."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import pg


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_the_benchmark_prints_its_table(need):
    why = pg.missing()
    need(why is None, str(why))
    command = [sys.executable, "-m", "tests.bench.steering", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    print(done.stdout)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    for row in ("SQLite", "PostgreSQL", "click to row", "same process", "the bell", "LISTEN", "every 2 s", "turn end"):
        assert row in done.stdout
    assert "not available" not in done.stdout
