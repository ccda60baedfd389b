"""What is shipped, what the repository holds, and what `import lionnb` costs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"CHANGELOG.md", "LICENSE", "README.md", "binder", "lionnb", "notebooks", "pyproject.toml", "tests"}
LIGHT = ("IPython", "ipywidgets", "lionagi", "numpy", "pandas", "sqlalchemy")


@pytest.fixture(scope="module")
def tracked(need: Callable[[object, str], None]) -> list[Path]:
    """The repository's files, relative to its root; what lies around untracked is not judged."""
    git = shutil.which("git")
    need(git and (ROOT / ".git").exists(), "this is no git checkout.")
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.split("\0") if name and (ROOT / name).is_file()]


def build(source: Path, kind: str, target: Path) -> Path:
    """Build a wheel or an sdist in this environment; nothing is fetched."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def clean_tree(tracked: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, so that a checkpoint or a cache of this checkout is neither shipped nor excused."""
    folder = tmp_path_factory.mktemp("tree")
    for name in tracked:
        (folder / name.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(clean_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(clean_tree, "sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def wheel(clean_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    with zipfile.ZipFile(build(clean_tree, "wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        return archive  # its list of names and no more is used


def under(tracked: list[Path], folder: str) -> set[str]:
    return {name.as_posix() for name in tracked if name.parts[0] == folder}


def test_the_wheel_holds_the_package_and_the_notebooks_and_nothing_else(
    wheel: zipfile.ZipFile, tracked: list[Path]
) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    notebooks = {f"lionnb/_{name}" for name in under(tracked, "notebooks")}
    assert any(name.endswith(".ipynb") for name in notebooks)
    assert "lionnb/py.typed" in shipped
    assert shipped == under(tracked, "lionnb") | notebooks


def test_the_wheel_holds_the_front_ends_of_the_widgets(wheel: zipfile.ZipFile) -> None:
    kinds = {Path(name).suffix for name in wheel.namelist() if name.startswith("lionnb/widgets/static/")}
    assert {".js", ".css"} <= kinds


def test_the_wheel_carries_its_licence_and_its_command(wheel: zipfile.ZipFile) -> None:
    about = [name.split(".dist-info/")[1] for name in wheel.namelist() if ".dist-info/" in name]
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= set(about)


def test_the_sdist_holds_what_building_and_testing_need(sdist: Path, tracked: list[Path]) -> None:
    shipped = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    wanted = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
    for folder in (".ci", "binder", "lionnb", "notebooks", "tests"):
        wanted |= under(tracked, folder)
    assert wanted <= shipped
    assert {name.split("/")[0] for name in shipped} <= TOP_LEVEL | {".ci", ".gitignore", "PKG-INFO"}


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    with zipfile.ZipFile(build(sdist, "wheel", tmp_path)) as again:
        assert sorted(again.namelist()) == sorted(wheel.namelist())


def test_the_top_level_is_what_the_layout_says(tracked: list[Path]) -> None:
    top = {name.parts[0] for name in tracked}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_no_file_names_this_machine_or_a_package_host(tracked: list[Path]) -> None:
    """A path or a host that works for one person only is found here rather than by the second person."""
    home = r"(?<![\w.~-])/(?:home|root|Users)/\w|\b[A-Z]:\\Users\b"
    hosts = r"\bpypi\.(?:org|io)\b|\bpythonhosted\.org\b|\bnpmjs\.(?:org|com)\b|\bdeb\.debian\.org\b"
    here = [re.escape(str(path)) for path in (ROOT, Path(sys.prefix)) if len(path.parts) > 2]
    configured = [re.escape(host) for host in configured_hosts()]
    wrong = re.compile("|".join([home, hosts, *(rf"{text}(?![\w-])" for text in here + configured)]))
    found = [
        f"{name}:{number}: {hit.group()}"
        for name in tracked
        for number, line in enumerate((ROOT / name).read_text("utf-8", "replace").splitlines(), 1)
        if (hit := wrong.search(line))
    ]
    assert found == []


def configured_hosts() -> set[str]:
    """Hosts of the package registries that this machine is set up for, by variables and pip's configuration."""
    configured = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    values = [v for k, v in os.environ.items() if re.search(r"(?i)(index|registry|proxy|find_links)", k)]
    hosts = set(re.findall(r"\w+://(?:[^@/\s'\"]*@)?([\w.-]+)", "\n".join([configured.stdout, *values])))
    return {host for host in hosts if "." in host and not host.startswith("127.")}


def test_import_lionnb_is_light() -> None:
    code = f"import sys, lionnb; print(lionnb.__file__, sorted(set({LIGHT}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("lionnb/__init__.py []\n")


def test_the_readme_gives_the_command_that_ci_runs() -> None:
    command = re.search(r'^TEST_COMMAND="(.+)"$', (ROOT / ".ci" / "run").read_text(), re.M)
    blocks = re.findall(r"^```(?:bash|sh|shell|console)?\n(.+?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert command and command[1] in lines


@pytest.mark.parametrize("script", [".ci/run", ".ci/floor", "binder/postBuild"])
def test_a_script_is_executable_and_parses(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_ci_knows_its_tiers_only() -> None:
    done = subprocess.run(["bash", str(ROOT / ".ci" / "run"), "quick"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: bash .ci/run [fast|full]\n"


def test_the_changelog_has_an_entry_for_this_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version and f"\n## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
