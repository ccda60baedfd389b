"""A pytest plugin for lionagi's own tests: every Branch they make is lionnb's.

The swap happens at the start of the session, after the conftests and before any test module is imported, so that each
``from lionagi import Branch`` of theirs finds ours. Without ``LIONNB_SWAP`` only what both runs need is done: lionagi's
token data, which it would otherwise try to download for minutes.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def pytest_sessionstart(session: Any) -> None:
    """Swap the class wherever lionagi holds it."""
    from lionnb.offline import ensure_token_data

    ensure_token_data()
    if not os.environ.get("LIONNB_SWAP"):
        return
    import lionagi
    import lionagi.session.branch
    import lionagi.session.session

    import lionnb.branch
    import lionnb.session  # before the swap: it holds lionagi's own classes

    stock, ours = lionagi.session.branch.Branch, lionnb.branch.Branch
    assert lionagi.Branch is stock, "lionagi's Branch was swapped already"
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "lionagi":
            for attribute in [a for a, value in vars(module).items() if value is stock]:
                setattr(module, attribute, ours)
    assert lionagi.Branch is ours and lionnb.session.StockBranch is stock


def pytest_report_header() -> str:
    """Which run this is."""
    return f"lionnb: Branch is {'turn-aware' if os.environ.get('LIONNB_SWAP') else 'stock'}"
