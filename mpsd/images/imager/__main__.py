"""The program mpsd-imager, which a process starts with a socket as standard input."""

import sys


def run() -> int:
    try:
        from mpsd.images.imager.process import serve
    except ImportError as exc:
        raise SystemExit(f"mpsd-imager needs cuda-python and NVRTC, the extra `images` of mpsd: {exc}") from None
    return serve(sys.stdin.fileno())


if __name__ == "__main__":
    sys.exit(run())
