"""`Session`: lionagi's, whose Branches are turn-aware however they come in. Public lionagi names only."""

from __future__ import annotations

from typing import Any

from lionagi.session.branch import Branch as StockBranch
from lionagi.session.session import Session as StockSession

from lionnb.branch import Branch, check_adoptable, wrap
from lionnb.errors import AdoptionError

__all__ = ("Session", "wrap_session")


class Session(StockSession):
    """A lionagi Session that builds, takes in, splits and loads turn-aware Branches."""

    def __init__(self, **kw: Any) -> None:
        if kw.get("default_branch") is None and not kw.get("branches"):
            kw["default_branch"] = Branch()
        super().__init__(**kw)

    def include_branches(self, branches: Any) -> None:
        """As lionagi's; stock Branches are made turn-aware in place first.

        Raises:
            AdoptionError: One of them cannot be; none was taken in.
        """
        # a Branch is iterable itself (its fields), so the type is asked first
        given = [branches] if isinstance(branches, StockBranch) else list(branches)
        for branch in given:
            check_adoptable(branch)
        super().include_branches([wrap(branch) for branch in given])

    def new_branch(self, *args: Any, as_default_branch: bool = False, **kw: Any) -> Branch:
        """As lionagi's."""
        names = ("system", "system_sender", "system_datetime", "user", "name", "messages", "tools")
        params = {**dict(zip(names, args, strict=False)), **kw}
        branch = Branch(**{k: v for k, v in params.items() if v is not None})
        self.include_branches(branch)
        if as_default_branch:
            self.default_branch = branch
        return branch


def wrap_session(session: Any) -> Any:
    """Make every Branch of a stock Session turn-aware in place. All or none.

    Raises:
        AdoptionError: One of them cannot be; the message says which and why.
    """
    if not isinstance(session, StockSession):
        raise AdoptionError(f"wrap_session() takes a lionagi Session, not {type(session).__name__}.")
    branches = list(session.branches)
    for branch in branches:
        check_adoptable(branch)
    for branch in branches:
        wrap(branch)
    return session
