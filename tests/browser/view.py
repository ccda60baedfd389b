"""A live view as a person finds it on a page: by what things are called."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.notebook_page import NotebookPage

__all__ = ("ViewOnPage",)

# Remembers every chip that the list of steers has shown, in order. On the output area: a leg that ends is shown anew.
WATCH = """
el => {
  el.lionnbSeen = [];
  const look = () => {
    const chip = el.querySelector('[aria-label="steers of this leg"] .ln-word')?.textContent;
    if (chip && chip !== el.lionnbSeen.at(-1)) el.lionnbSeen.push(chip);
  };
  new MutationObserver(look).observe(el, { childList: true, subtree: true, characterData: true });
  look();
}
"""


class ViewOnPage:
    """The view in the output of one cell. Waits are bounded, and end with what they wait for."""

    def __init__(self, nb: NotebookPage, cell: int, *, nth: int = 0) -> None:
        self.nb, self.cell = nb, cell
        self.root = nb.output(cell).locator(".lionnb-turn-view").nth(nth)
        self.box = self.root.get_by_role("textbox", name="Steer this leg", exact=True)
        self.send = self.root.get_by_role("button", name="Send", exact=True)
        self.steers = self.root.get_by_role("list", name="steers of this leg").get_by_role("listitem")
        self.sent = self.root.get_by_role("list", name="sent from this page").get_by_role("listitem")
        self.head = self.root.locator(".ln-header")
        self.transcript = self.root.get_by_role("log", name="transcript")

    def wait_in_turn(self) -> None:
        """Wait until it shows a turn that goes on."""
        expect(self.head).to_contain_text("· active ·")

    def wait_status(self, word: str) -> None:
        """Wait for the word at its head."""
        expect(self.head.locator(".ln-chip").first).to_contain_text(word)

    def wait_chip(self, chip: str, *, nth: int = 0) -> Locator:
        """Wait until the nth steer (the newest first) has this chip."""
        expect(self.steers.nth(nth).locator(".ln-chip")).to_contain_text(chip)
        return self.steers.nth(nth)

    def watch(self) -> None:
        """Remember the chips from now on."""
        self.nb.output(self.cell).evaluate(WATCH)

    @property
    def seen(self) -> list[str]:
        """The chips that the newest steer has had since `watch`."""
        return self.nb.output(self.cell).evaluate("el => el.lionnbSeen")

    def steer(self, text: str) -> None:
        """Type it and press Send."""
        self.box.press_sequentially(text)
        self.send.click()

    def settle(self) -> None:
        """Outlive the moment in which the view refuses a press because its turn has only just changed."""
        born = self.nb.page.evaluate("() => performance.now()")
        self.nb.page.wait_for_function("born => performance.now() - born > 500", arg=born)
