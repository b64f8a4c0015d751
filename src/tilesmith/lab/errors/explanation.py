"""An entry of the catalogue of errors."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """What an error means, and where to look.

    `message` is a pattern of the error's message. Where several mistakes have the same message, `code` is a pattern of
    the source line as well.
    """

    name: str
    message: str
    meaning: str
    look_at: str
    code: str = ""

    def fits(self, message: str, code: str) -> bool:
        """Return whether this entry explains an error with this message, raised on this line of source."""
        return bool(re.search(self.message, message)) and (not self.code or bool(re.search(self.code, code)))

    @property
    def text(self) -> str:
        return f"{self.meaning} {self.look_at}"
