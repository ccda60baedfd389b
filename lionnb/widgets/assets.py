"""The browser's half as one module and one style sheet, put together from ``static/``. No bundler, no CDN.

The files are plain ES modules that import each other, so that node can test them one by one. In the notebook they have
to be one text: the import lines between them are dropped, and everything they name is at the top level of that text.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

__all__ = ("ORDER", "css", "esm")

ORDER = (
    "format.js", "lists.js", "state.js", "sync.js", "dom.js", "desk.js", "header.js", "transcript.js",
    "lanes.js", "timeline.js", "panel.js", "view.js",
)  # fmt: skip
"""Each file imports only from files before it; the last one has the ``export default``."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z_]+\.js";\n', re.MULTILINE)


def _read(name: str) -> str:
    return (files("lionnb.widgets") / "static" / name).read_text(encoding="utf-8")


@cache
def esm() -> str:
    """The module that the front end loads."""
    return "\n".join(_IMPORT.sub("", _read(name)) for name in ORDER)


@cache
def css() -> str:
    """The style sheet."""
    return _read("turn_view.css")
