"""Images that an experiment adds to its section of the report."""

import base64
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """An image, such as a grid of samples.

    Attributes:
        title: Above it.
        png: The bytes of a PNG file; they become part of the page.
        alt: What it shows, for those who do not see it.
        caption: Below it.
    """

    title: str
    png: bytes
    alt: str
    caption: str = ""

    @property
    def uri(self) -> str:
        """The image as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()
