"""The control store: runs, the controls sent to them, and the record of turns. Its fence is in `controls`.

`Store` is the front for any thread; `StoreCore` (in `store.core`) holds the operations. Importing this package loads
neither SQLAlchemy nor a driver.
"""

from lionnb.store.door import MAX_STEER_BYTES, normalise
from lionnb.store.location import Location, locate
from lionnb.store.results import Admission, Claim, EndResult, Purged, Reported
from lionnb.store.store import Store, default_store

__all__ = (
    "MAX_STEER_BYTES",
    "Admission",
    "Claim",
    "EndResult",
    "Location",
    "Purged",
    "Reported",
    "Store",
    "default_store",
    "locate",
    "normalise",
)
