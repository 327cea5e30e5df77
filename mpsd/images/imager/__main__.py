"""The program mpsd-imager, which a process starts with a socket as standard input."""

import os
import sys
import traceback
from typing import NoReturn

from mpsd.images.imager.serving import serve


def run() -> NoReturn:
    """Serve, and end at once: a thread may wait in the driver for a place at MPS, for as long as others have theirs."""
    status = 1
    try:
        status = serve(sys.stdin.fileno())
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    run()
