"""An imager that starts while its process does, for an arena that has to be restored.  Prose: mpsd's docs/images.md."""

import os
import threading
import time
from contextlib import suppress

from mpsd_client._client import Client
from mpsd_client._enlisting import has_cuda_begun
from mpsd_client._errors import MpsdError
from mpsd_client._imager import ImageError, ImagerProcess
from mpsd_client._restoring import has_images, images_place, looks_missing

UNUSED_SECONDS = 60.0  # after that it ends, with its context: the program does something else
LOOK_SECONDS = 0.01


class EarlyImager:
    """Owns the imager until it is taken.  Raises ImageError.

    It makes its context once this process has begun CUDA: the program takes its place at MPS first."""

    def __init__(self, arena: str, directory: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()  # protects the imager, which is not for several threads at a time
        self._is_over = threading.Event()  # it was taken, or let go
        place = os.path.abspath(directory)
        self._imager: ImagerProcess | None = ImagerProcess(is_beside_cuda=True)
        try:
            threading.Thread(target=self._attend, args=(arena, place), name="mpsd imager", daemon=True).start()
        except RuntimeError as exc:  # this process may start no more threads
            self.close()
            raise ImageError("the thread of an imager cannot be started") from exc

    def take(self) -> ImagerProcess | None:
        """Return the imager, which is the caller's now; None: it was taken, or has been let go."""
        with self._lock:
            imager, self._imager = self._imager, None
        self._is_over.set()
        return imager

    def close(self) -> None:
        imager = self.take()
        if imager is not None:
            imager.close()

    def _attend(self, arena: str, directory: str) -> None:
        """Let the imager make its context as soon as it may, and let it go if it is not needed."""
        end = time.monotonic() + UNUSED_SECONDS
        while not has_cuda_begun():
            if self._is_over.wait(LOOK_SECONDS):
                return
            if time.monotonic() > end:
                self.close()
                return
        self._warm(arena, directory)
        if not self._is_over.wait(max(0.0, end - time.monotonic())):
            self.close()

    def _warm(self, arena: str, directory: str) -> None:
        with self._lock, suppress(MpsdError):  # it has ended: the restore starts another one
            if self._imager is not None:
                self._imager.warm(arena, directory)


def early_imager(
    arena: str, path: str | os.PathLike[str] | None, directory: str | os.PathLike[str] | None
) -> EarlyImager | None:
    """Start an imager if the arena is missing and images exist; None: it is not needed, or cannot be started.

    The restore meets the same trouble, and reports it."""
    with suppress(MpsdError, OSError):
        place = images_place(directory)
        if has_images(place):
            with Client(path, program="mpsd_client") as mpsd:
                is_needed = looks_missing(mpsd, arena)
            return EarlyImager(arena, place) if is_needed else None
    return None
