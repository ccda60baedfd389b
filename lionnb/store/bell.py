"""The bell: one datagram on this machine's loopback that says "the file has changed". Imports nothing of lionnb.

It is a hint and no more: it carries nothing, nobody trusts it, and it may be lost (another network namespace, more
listeners than ports, a full buffer). Who hears it looks at the database, and looks there now and then anyway.

Nobody registers: the ports follow from the file's identity, a listener takes the first free one of them, and whoever
writes rings them all. So there is no list that a process could die on, and reading writes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket

__all__ = ("Bell",)

PORTS = 8  # listeners on one file that can hear; later ones find the change by looking
_FIRST, _LAST = 61_000, 65_535  # above the ports that Linux hands out by itself
_LOOPBACK = "127.0.0.1"


class Bell:
    """The bell of one file, named by what it is and not by how its path is spelt.

    Args:
        path: The file; it exists.
    """

    def __init__(self, path: str) -> None:
        try:
            found = os.stat(path)
            named = f"{found.st_dev}:{found.st_ino}"
        except OSError:
            named = path
        slots = (_LAST - _FIRST) // PORTS
        number = int.from_bytes(hashlib.sha256(named.encode("utf-8", "surrogatepass")).digest()[:8], "big")
        first = _FIRST + PORTS * (number % slots)
        self.ports = range(first, first + PORTS)
        self.own: int | None = None  # where this process listens; it knows what it writes

    def ring(self) -> None:
        """Tell every listener of this machine but this process. Never raises, never waits."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for port in self.ports:
                if port != self.own:
                    with contextlib.suppress(OSError):
                        sender.sendto(b"!", (_LOOPBACK, port))

    def listen(self) -> socket.socket | None:
        """A socket, not blocking, that hears the bell; ``None`` when no port is free. The caller closes it."""
        for port in self.ports:
            listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                listener.bind((_LOOPBACK, port))
            except OSError:
                listener.close()
                continue
            listener.setblocking(False)
            return listener
        return None
