"""`Session`: lionagi's, whose Branches are turn-aware however they come in. Public lionagi names only."""

from __future__ import annotations

from typing import Any, ClassVar

from lionagi.session.branch import Branch as StockBranch
from lionagi.session.session import Session as StockSession

from lionnb.branch import Branch, check_adoptable, quieten, wrap
from lionnb.errors import AdoptionError

__all__ = ("Session", "wrap_session")


class Session(StockSession):
    """A lionagi Session that builds, takes in, splits and loads turn-aware Branches."""

    _adopted: ClassVar[type[Any] | None] = None  # the class whose name its snapshots carry; see below

    def __init__(self, **kw: Any) -> None:
        if kw.get("default_branch") is None and not kw.get("branches"):
            kw["default_branch"] = Branch()
        super().__init__(**kw)

    @classmethod
    def class_name(cls, full: bool = False) -> str:
        """Lionagi's own class name: lionagi loads only classes of its own, so stock lionagi can read our snapshots."""
        stock: type[Any] | None = cls.__dict__.get("_adopted")
        return str(super().class_name(full) if stock is None else stock.class_name(full))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """As lionagi's, but a snapshot that names lionagi's Session becomes one of this class."""
        key = "node_metadata" if "node_metadata" in data else "metadata"
        metadata = dict(data.get(key) or {})
        if metadata.get("lion_class") == StockSession.class_name(full=True):
            del metadata["lion_class"]
        made = super().from_dict({**data, key: metadata})
        for branch in made.branches:  # built by lionagi, with loggers that would write into the current folder
            quieten(branch)
        return made

    def include_branches(self, branches: Any) -> None:
        """As lionagi's; stock Branches are made turn-aware in place first.

        Raises:
            AdoptionError: One of them cannot be; none was taken in.
        """
        # a Branch is iterable itself (its fields), so the type is asked first
        given = [branches] if isinstance(branches, StockBranch) else list(branches)
        check_adoptable(*given)
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


# Not in the class body: lionagi registers each Session class under its name while the class is made, and ours must not
# take the place of lionagi's own for everybody in the process.
Session._adopted = StockSession  # noqa: SLF001


def wrap_session(session: Any) -> Any:
    """Make every Branch of a stock Session turn-aware in place. All or none.

    Raises:
        AdoptionError: One of them cannot be; the message says which and why.
    """
    if not isinstance(session, StockSession):
        raise AdoptionError(f"wrap_session() takes a lionagi Session, not {type(session).__name__}.")
    branches = list(session.branches)
    check_adoptable(*branches)
    for branch in branches:
        wrap(branch)
    return session
