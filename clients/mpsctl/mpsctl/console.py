"""A console to which text from mpsd, from a client's name or another user's words does nothing but be shown.

Guards this at the one place that all text passes on its way out, also where a command forgets it.
"""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mpsctl.output import visible


class ShowingConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # rich's own: the cursor of `top`
                yield segment
            else:
                yield Segment("\n".join(map(visible, segment.text.split("\n"))), segment.style)
