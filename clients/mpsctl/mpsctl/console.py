"""A console on which text from mpsd, client names or other users cannot control the terminal.

It escapes all text at the one place that all output passes, so that no command can forget it.
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
