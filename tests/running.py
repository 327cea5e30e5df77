"""Tasks that run for as long as a block of a test."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio


@asynccontextmanager
async def running(task: Callable[..., Any], *arguments: object) -> AsyncIterator[None]:
    """Start the task, and cancel it at the end of the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task, *arguments)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def started(task: Callable[..., Any], *arguments: object) -> AsyncIterator[None]:
    """Like running(), but the block begins when the task reports that it has started."""
    async with trio.open_nursery() as nursery:
        await nursery.start(task, *arguments)
        yield
        nursery.cancel_scope.cancel()
