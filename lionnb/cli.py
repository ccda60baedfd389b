"""The `lionnb` command. Owns what a person types in a terminal; the work is done by functions elsewhere.

A command is a plain function under ``@app.command()``; a group is a ``typer.Typer`` added with
``app.add_typer``. It imports what it needs inside its body, so that ``lionnb --help`` loads neither lionagi
nor pandas nor SQLAlchemy. It prints through `say`, and it refuses by raising a `LionnbError`, which `main`
turns into one sentence and exit code 1 (3 when the store could not be used).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lionnb import ctl
from lionnb.errors import LionnbError, StoreError
from lionnb.terminal import say

__all__ = ("app", "main", "say")

app = typer.Typer(
    name="lionnb",
    help="Turn-aware lionagi Branches, background legs and steering for notebooks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # a local may hold a prompt or a key
)


def main() -> None:
    """Run the command line of this process; the entry point of the `lionnb` script."""
    try:
        app()
    except LionnbError as refusal:
        say(str(refusal), err=True)
        sys.exit(3 if isinstance(refusal, StoreError) else 1)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        say(f"lionnb {metadata.version('lionnb')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo() -> None:
    """Show the main scene here: a leg works, a steer is queued, a continuation turn carries it.

    Scripted and in memory: no key, no network, no file. Exit status 0 only if the steer was applied.
    """
    from lionnb.demo import run_demo

    raise typer.Exit(run_demo())


LAB_FOLDER = Path("lionnb-notebooks")


@app.command()
def lab(
    folder: Annotated[Path, typer.Argument(help="Where your copies of the notebooks live.")] = LAB_FOLDER,
    port: Annotated[int, typer.Option(min=1, max=65535, help="First port to try.")] = 8888,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Copy the notebooks into FOLDER and open JupyterLab on them.

    A file that is already there is never written to: what you changed stays yours. To get an original back,
    delete or rename your file and run the command again.
    """
    from lionnb.lab import copy_notebooks, notebooks_source, require_jupyterlab, start_jupyterlab

    require_jupyterlab()
    new, differing = copy_notebooks(notebooks_source(), folder)
    say(f"{folder}: {new} copied")
    for name in differing:
        say(f"  {name} is not the original any more and stays as it is")
    start_jupyterlab(folder, port=port, browser=browser)


app.command(epilog=ctl.EXITS)(ctl.legs)
app.command(epilog=ctl.EXITS)(ctl.export)
app.add_typer(ctl.app, short_help="Steer a run from another terminal: send, look, withdraw, resolve.")
