"""What costs something and brings nothing, again and again, is done ever more rarely."""

from __future__ import annotations

_PATIENCE = 3  # runs without profit
_MOST = 64  # runs without it in a row


class Losses:
    """Runs of something without profit. count: in a row. left: runs that go without it now."""

    __slots__ = ("count", "left")

    def __init__(self) -> None:
        self.count = self.left = 0

    def skips(self) -> bool:
        """Returns True if this run goes without it, and counts it."""
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def learn(self, *, profit: bool) -> None:
        """Records a run that went with it."""
        self.count = 0 if profit else self.count + 1
        self.left = min(1 << (self.count - _PATIENCE), _MOST) if self.count >= _PATIENCE else 0
