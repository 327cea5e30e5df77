"""The program mpsd-imager, which a process starts with a socket as standard input."""

import sys

from mpsd.images.imager.serving import serve


def run() -> int:
    return serve(sys.stdin.fileno())


if __name__ == "__main__":
    sys.exit(run())
