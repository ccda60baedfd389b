"""What README promises is run, and what it draws is compared with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lionnb.records import ControlState, Fate

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_complete_example_runs_and_prints_what_its_comments_say(tmp_path):
    """The example works as it stands, in an empty folder, and leaves nothing there."""
    folder = tmp_path / "empty"
    folder.mkdir()
    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    # on a slow disk the row takes longer than `steer` waits, and the receipt says that instead
    assert said[0] == "being recorded" or said[0].startswith("queued: lands at the end of the current turn")
    assert said[1] == "Four are newer than 2020."
    assert said[2].startswith("applied in turn ") and said[2].endswith("which completed")
    assert "only sources after 2020" in done.stdout and "applied" in said[-1]
    assert list(folder.iterdir()) == []


def test_the_table_of_fates_is_complete():
    """Every fate is explained, under its own word."""
    rows = re.findall(r"^\| ([a-z, ]+) \|", README, re.M)
    words = {w.strip().replace(" ", "_") for row in rows for w in row.split(",")}
    assert {f.value for f in Fate} <= words


def test_the_diagram_of_a_steer_names_every_state():
    """The picture and the enum have the same states."""
    picture = re.search(r"```\n( +withdraw / sweep.*?)```", README, re.S).group(1)
    assert {s.value for s in ControlState} <= set(re.findall(r"[a-z]+", picture))


def test_readme_is_short():
    """A person reads it to the end."""
    assert len(README.splitlines()) < 200
