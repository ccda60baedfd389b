"""Scenes: lists of feed events that tell a story. Shared by the tests, the pictures and (as JSON) by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lionnb.records import FeedEvent

T0 = 1_764_511_200.0
TURN, NEXT = "3f2a91bc-55d0-4c1e-9d0e-0a4f1c2b7e11", "a1b2c3d4-55d0-4c1e-9d0e-0a4f1c2b7e22"

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "javascript:alert(1)",
    "</style><details open ontoggle=alert(1)>",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)} `alert(1)`",
    "compare <Plan at 0x1a2b> with a < b && c > d",
    "\u202egpj.exe\u202c \u2066isolated\u2069 \u200bzero\u200d",
    "\x1b[31mred\x1b[0m \x00 nul \x07",
    "one\u2028two\u2029three\x85four",
    "W" * 400,
    "![x](http://evil.test/?q=1) <a href='http://evil.test'>click</a>",
    "__proto__",
]


class Story:
    """Makes events with a clock of its own."""

    def __init__(self, at: float = T0) -> None:
        self.at, self.events = at, list[FeedEvent]()

    def __call__(self, kind: str, turn: str | None = None, /, after: float = 0.0, **data: Any) -> Story:
        self.at += after
        self.events.append(FeedEvent(len(self.events), self.at, kind, turn, data))
        return self

    def __iter__(self) -> Iterator[FeedEvent]:
        return iter(self.events)

    def leg(self, status: str = "running", sentence: str = "", **more: Any) -> Story:
        data = {"run_id": "20261130T140000-3fa9c1", "name": "survey", "timeout_s": 600.0, "queued": 0}
        times = {"started_at": T0, "deadline_at": T0 + 600}
        return self("leg", None, **{**data, **times, "status": status, "sentence": sentence, **more})

    def steer(
        self, n: int, fate: str, chip: str, sentence: str, text: str = "Only papers after 2024.", **more: Any
    ) -> Story:
        row = {"control_id": f"c{n}", "seq": n, "text": text, "fate": fate, "chip": chip, "sentence": sentence}
        times = {"created_at": self.at, "created_by": "ada", "handed_over_at": None, "closed_at": None}
        times["claim"] = f"leg-1:{n}" if "handed_over_at" in more else None
        return self("steer", None, **{**row, "note": None, "turn_id": None, **times, **more})


def working_leg() -> Story:
    """A leg in its second turn: tools, text that comes, steers of all five chips, someone who waits."""
    s = Story().leg(sentence="turn 1 of at most 8")
    s(
        "start",
        TURN,
        operation="operate",
        model="gpt-4.1-mini",
        task="leg survey",
        waited_s=0.0,
        instruction="Survey the literature on steering long agent runs. Read three papers and compare their protocols.",
    )
    s(
        "text",
        TURN,
        role="user",
        id="m1",
        text="Survey the literature on steering long agent runs. Read three papers and compare their protocols.",
    )
    s(
        "blocks",
        TURN,
        blocks=[
            {
                "name": "project notes",
                "tokens": 412,
                "text": "Notes of the group on claims, leases and fences.\n- claim is the fence",
            },
            {"name": "clock", "tokens": 12, "text": "Monday, 30 November 2026"},
        ],
        skipped=["calendar"],
        failed=[{"provider_name": "wiki", "reason": "timed out after 2 s"}],
        degraded=[{"provider_name": "search index", "reason": "cut to its budget of 300 tokens"}],
    )
    for i in range(14):
        s("signal", TURN, after=0.3, name=["NodeCreated", "MessageAdded", "ToolInvoked"][i % 3])
    s("tool_call", TURN, id="t1", name="search", arguments='{"query": "agent steering turn boundary", "limit": 5}')
    s(
        "tool_result",
        TURN,
        after=0.8,
        id="t1",
        name="search",
        error=None,
        output="5 results\n1. Steering at the turn end (2026)\n2. Warm continuation turns\n3. Claims and leases in SQL",
    )
    s(
        "tool_call",
        TURN,
        after=0.2,
        id="t2",
        name="read_pdf",
        arguments='{"url": "https://example.org/steering.pdf", "pages": "1-12"}',
    )
    s("tool_result", TURN, after=2.1, id="t2", name="read_pdf", output=None, error="HTTPError: 503 Service Unavailable")
    s("warning", TURN, text="the provider answered 429 and was asked again after 1.5 s")
    s.steer(1, "pending", "queued", "lands at the end of the current turn")
    s(
        "text",
        TURN,
        after=3.0,
        role="assistant",
        id="m2",
        text=(
            "Three protocols stand out.\n\n1. Turn-end continuation: the steer lands as the next instruction on the warm branch.\n"
            "2. Mid-turn injection: engine specific, needs stdin.\n3. Kill and resubmit: loses the context."
        ),
    )
    s("phase", TURN, phase="finalizing")
    s("end", TURN, after=0.4, outcome="completed", error=None, duration_s=11.2, input_tokens=2841, output_tokens=311)
    s.steer(1, "delivering", "delivering", "being handed over to the leg", handed_over_at=s.at)
    s(
        "start",
        NEXT,
        operation="operate",
        model="gpt-4.1-mini",
        waited_s=0.0,
        task="leg survey",
        instruction="The operator who started this run sends a correction:\n1. > Only papers after 2024.",
    )
    s.steer(1, "applied", "applied", "applied in turn a1b2c3d4", handed_over_at=s.at, closed_at=s.at, turn_id=NEXT)
    s("wait", None, operation="communicate", task="Task-41", behind="turn a1b2c3d4 (operate, active)", after=0.1)
    for i in range(30):
        s("signal", NEXT, after=0.11, name=["NodeCreated", "MessageAdded"][i % 2])
    s.steer(
        2,
        "withdrawn",
        "not delivered",
        "withdrawn by ada before it was handed over",
        text="Also look at blog posts.",
        closed_at=s.at,
    )
    s.steer(
        3,
        "never_reported",
        "needs you",
        "handed to a leg that died before it reported back",
        handed_over_at=s.at - 30,
        text="Stop after two papers if they agree.",
        created_at=s.at - 60,
    )
    s.steer(
        4, "delivering", "delivering", "held by leg 7f31 of this kernel", handed_over_at=s.at, text="Cite page numbers."
    )
    s.steer(
        5,
        "pending",
        "queued",
        "lands at the end of the current turn; 1 before it",
        text="Put the comparison into a table with one row per protocol, and name the failure that each one permits.",
    )
    s("control", NEXT, directive="cancel", reason="asked in the view", fate="stored")
    s.leg(sentence="turn 2 of at most 8", queued=1)
    for word in [
        "Of",
        "the",
        "papers",
        "after",
        "2024",
        "two",
        "describe",
        "a",
        "claim",
        "that",
        "is",
        "also",
        "the",
        "hand-over,",
        "so",
        "that",
        "a",
        "row",
        "which",
        "was",
    ]:
        s("chunk", NEXT, after=0.05, text=word + " ")
    return s


def finished_leg() -> Story:
    """The same leg at its end."""
    s = working_leg()
    s("text", NEXT, after=2.0, role="assistant", id="m4", text="Both agree: the claim is the fence.")
    s("end", NEXT, after=0.2, outcome="completed", error=None, duration_s=9.1, input_tokens=3120, output_tokens=188)
    s("end", None, after=5.0, operation="communicate", task="Task-41", outcome="cancelled while waiting", error=None)
    return s.leg("completed", "2 turns, 5 steers")


def failed_turn() -> Story:
    """A Branch whose provider fails."""
    s = Story()
    s(
        "start",
        TURN,
        operation="communicate",
        model="claude-sonnet-4",
        waited_s=3.25,
        instruction="Say hello.",
        task="Task-3",
    )
    s("chunk", TURN, after=0.5, text="Hel")
    s(
        "end",
        TURN,
        after=0.5,
        outcome="failed",
        duration_s=1.0,
        input_tokens=None,
        output_tokens=None,
        error="APIConnectionError: the server closed the connection\nwithout a response",
    )
    return s


def hostile(text: str) -> Story:
    """The text in every field that there is."""
    s = Story()
    t = text
    s.leg(run_id=t, name=t, sentence=t)
    s("wait", None, operation=t, task=t, behind=t)
    s("start", t, operation=t, model=t, instruction=t, waited_s=1.0, task="other")
    s("text", t, role=t, text=t, id=t)
    s("text", t, role="assistant", text=t, id=t)
    s("tool_call", t, id=t, name=t, arguments=t)
    s("tool_result", t, id=t, name=t, output=t, error=None)
    s("tool_result", t, id="x", name=t, output=None, error=t)
    s(
        "blocks",
        t,
        blocks=[{"name": t, "tokens": 1, "text": t}],
        skipped=[t],
        failed=[{"name": t, "error": t}],
        degraded=[{"provider_name": t, "reason": t}],
    )
    s("control", t, directive=t, reason=t, fate=t)
    s("signal", t, name=t)
    s("warning", t, text=t)
    s(t, t, anything=t)
    s("beat", None, text=t)
    for n, (fate, chip) in enumerate([("pending", "queued"), ("delivering", "delivering"), ("applied", "applied"),
                                      ("rejected", "not delivered"), ("never_reported", "needs you"), (t, t)]):  # fmt: skip
        s.steer(n, fate, chip, t, text=t, note=t, turn_id=t, created_by=t, control_id=f"{n}{t}")
    s("chunk", t, text=t)
    s("end", "other", outcome=t, error=t, duration_s=1.0, input_tokens=1, output_tokens=1)
    return s
