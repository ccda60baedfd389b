"""The user's own copy of the notebooks, and JupyterLab on it: what `lionnb lab` does. Imports `errors` only.

A notebook is changed by running it, so "is it the original?" is asked of its cells, never of its bytes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from lionnb.errors import LionnbError

__all__ = ("copy_notebooks", "notebooks_source", "require_jupyterlab", "start_jupyterlab")


def require_jupyterlab() -> None:
    """Return only when JupyterLab can be started.

    Raises:
        LionnbError: The ``lab`` extra is missing.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise LionnbError("JupyterLab is not installed: pip install 'lionnb[lab]' adds it.")


def notebooks_source() -> Path:
    """Return the folder of the notebooks that came with this lionnb, installed or in a source checkout.

    Raises:
        LionnbError: Neither is there.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_notebooks", package.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise LionnbError("this installation has no notebooks: install lionnb again, or clone its repository.")


def copy_notebooks(source: Path, target: Path) -> tuple[int, list[Path]]:
    """Copy what *target* does not have yet; write to no existing file. Running it twice copies nothing twice.

    Returns:
        How many files were new, and the paths (relative to *target*, sorted) that are not the original any
        more. A notebook that only ran has other outputs and still counts as the original.

    Raises:
        LionnbError: *target* cannot be read or written.
    """
    new, differing = 0, list[Path]()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for original in _files(source):
            name = original.relative_to(source)
            mine = target / name
            mine.parent.mkdir(parents=True, exist_ok=True)
            try:
                with mine.open("xb") as file:  # creates or fails: a file of the user is at no moment replaced
                    file.write(original.read_bytes())
                new += 1
            except FileExistsError:
                if _content(mine) != _content(original):
                    differing.append(name)
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        raise LionnbError(f"cannot copy the notebooks to {target}: {why}. Name another folder.") from exc
    return new, differing


def _files(source: Path) -> Iterator[Path]:
    """Every file under *source*, sorted, without checkpoints, caches and hidden files."""
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
            yield path


def _content(path: Path) -> Any:
    """What a person would call the content: of a notebook its cells without outputs, else the bytes."""
    raw = path.read_bytes()
    if path.suffix != ".ipynb":
        return raw
    try:
        return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(raw)["cells"]]
    except (ValueError, KeyError, TypeError):  # not a notebook any more: whatever it is, it is the user's
        return raw


def start_jupyterlab(folder: Path, *, port: int, browser: bool) -> NoReturn:
    """Become JupyterLab on *folder*; this process ends with the server's exit code.

    Args:
        folder: Where the file browser starts.
        port: First port to try; JupyterLab takes one of the next when it is taken.
        browser: Whether JupyterLab opens a browser.
    """
    command = [sys.executable, "-m", "jupyterlab", str(folder.resolve()), f"--port={port}"]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # who types this as root sits in a container, and means it
    sys.stdout.flush()
    if os.name == "posix":
        # Not a child: signals and the exit code are then the server's own, and no SIGTERM can orphan it.
        os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
    sys.exit(subprocess.call(command))  # noqa: S603 - our own list of arguments
