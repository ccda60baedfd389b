"""The command line: what it loads, what it prints, and that a person's notebooks are never written to."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lionnb import cli, lab
from lionnb.errors import LionnbError

HEAVY = ("IPython", "ipywidgets", "jupyterlab", "lionagi", "numpy", "pandas", "sqlalchemy")


def notebook(*sources: str, outputs: list | None = None) -> str:
    cells = [{"cell_type": "code", "source": [s], "outputs": outputs or [], "metadata": {}} for s in sources]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "images").mkdir(parents=True)
    (folder / "01-turns.ipynb").write_text(notebook("1 + 1"))
    (folder / "02-legs.ipynb").write_text(notebook("2 + 2"))
    (folder / "images" / "queue.svg").write_text("<svg/>")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "01-turns.ipynb").write_text("{}")
    return folder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, source: Path) -> list[list[str]]:
    """The command lines that would have replaced this process."""
    lines: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, line: lines.append([program, *line[1:]]) or sys.exit(0))
    monkeypatch.setattr(lab, "notebooks_source", lambda: source)
    return lines


def run(*args: str):
    return CliRunner().invoke(cli.app, list(args))


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("args", [["--help"], ["lab", "--help"], ["ctl", "msg", "--help"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    code = (
        f"import sys; from lionnb.cli import main; sys.argv = ['lionnb', *{args}]\n"
        "try: main()\n"
        "except SystemExit as done: assert not done.code, done\n"
        f"print('LOADED', sorted(set({HEAVY}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert done.stdout.rstrip().endswith("LOADED []")


def test_module_and_script_are_the_same_command() -> None:
    for command in ([sys.executable, "-m", "lionnb"], [str(Path(sys.executable).with_name("lionnb"))]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.split()[0] == "lionnb"
        assert done.stdout.split()[1][0].isdigit()


def test_a_refusal_is_one_sentence_on_standard_error_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lionnb", "lab"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "JupyterLab is not installed: pip install 'lionnb[lab]' adds it.\n")


def test_say_prints_no_markup_and_nothing_a_terminal_acts_on(capsys: pytest.CaptureFixture[str]) -> None:
    cli.say("[bold]é[/bold] \x1b]0;title\x07 \x9b31m \u202etxt.exe\r\n\tend")
    assert capsys.readouterr().out == "[bold]é[/bold] \ufffd]0;title\ufffd \ufffd31m \ufffdtxt.exe\ufffd\n\tend\n"


def test_lab_copies_the_notebooks_and_becomes_jupyterlab_on_them(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    done = run("lab", "--port", "9999", "--no-browser")
    assert done.exit_code == 0, done.output
    target = tmp_path / "lionnb-notebooks"
    assert files(target) == {"01-turns.ipynb", "02-legs.ipynb", "images/queue.svg"}
    assert started == [[sys.executable, "-m", "jupyterlab", str(target), "--port=9999", "--no-browser"]]


def test_root_is_not_refused_by_jupyterlab(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    run("lab", str(tmp_path / "mine"))
    assert started == [[sys.executable, "-m", "jupyterlab", str(tmp_path / "mine"), "--port=8888", "--allow-root"]]


def test_a_file_that_is_there_is_never_written_to(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    assert lab.copy_notebooks(source, target) == (3, [])
    ran = notebook("1 + 1", outputs=[{"output_type": "stream", "name": "stdout", "text": ["2"]}])
    (target / "01-turns.ipynb").write_text(ran)
    (target / "02-legs.ipynb").write_text(notebook("2 + 3"))
    (target / "images" / "queue.svg").unlink()
    assert lab.copy_notebooks(source, target) == (1, [Path("02-legs.ipynb")])
    assert (target / "01-turns.ipynb").read_text() == ran
    assert (target / "02-legs.ipynb").read_text() == notebook("2 + 3")
    assert (target / "images" / "queue.svg").read_text() == "<svg/>"


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"cells": [3]}', '{"cells": [{"cell_type": "code"}]}'])
def test_a_notebook_that_is_none_any_more_stays_too(source: Path, tmp_path: Path, text: str) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "01-turns.ipynb").write_text(text)
    assert lab.copy_notebooks(source, target) == (2, [Path("01-turns.ipynb")])
    assert (target / "01-turns.ipynb").read_text() == text


def test_a_changed_notebook_is_named(started: list[list[str]], tmp_path: Path) -> None:
    run("lab", str(tmp_path / "mine"))
    (tmp_path / "mine" / "01-turns.ipynb").write_text(notebook("mine"))
    done = run("lab", str(tmp_path / "mine"))
    assert "01-turns.ipynb is not the original any more and stays as it is" in done.output
    assert "02-legs.ipynb" not in done.output
    assert len(started) == 2


def test_a_folder_that_is_a_file_is_refused_with_a_sentence(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(LionnbError, match=r"cannot copy the notebooks to .*mine: File exists\. Name another"):
        lab.copy_notebooks(source, tmp_path / "mine")


def test_the_checkout_or_the_package_has_notebooks() -> None:
    assert any(lab.notebooks_source().glob("*.ipynb"))


@pytest.mark.slow
def test_lab_serves_the_copied_notebooks_and_ends_on_sigterm(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "JUPYTER_TOKEN": "t", "JUPYTER_PLATFORM_DIRS": "1"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "lionnb", "lab", "--no-browser", f"--port={port}", "mine"],
            cwd=tmp_path, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            names = {entry["name"] for entry in answer(server, f"http://127.0.0.1:{port}/api/contents?token=t")}
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(30)
    assert names == {p.name for p in lab.notebooks_source().iterdir() if not p.name.startswith(".")}
    assert code == 0


def answer(server: subprocess.Popen[bytes], url: str) -> list[dict]:
    """The folder listing, asked for until the server that is starting gives it, or has ended."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)["content"]
        except urllib.error.URLError:
            try:
                pytest.fail(f"the server ended with {server.wait(0.1)}")
            except subprocess.TimeoutExpired:
                continue
