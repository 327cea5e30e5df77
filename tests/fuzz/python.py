"""One Python reader under atheris: `python -m tests.fuzz.python NAME [libFuzzer's flags] CORPUS...`.

`all` for NAME: the first byte of an input selects the reader that gets the rest, in the order of their names.
"""

import importlib
import sys

import atheris

with atheris.instrument_imports(include=["mpsd", "mpsd_client", "mpsctl", "tests.fuzz"]):
    targets = importlib.import_module("tests.fuzz.targets")
    importlib.import_module("tests.fuzz.client_targets")


def read_any(data: bytes) -> None:
    readers = [targets.TARGETS[name].read for name in sorted(targets.TARGETS)]
    if data:
        readers[data[0] % len(readers)](data[1:])


def main() -> None:
    name = sys.argv.pop(1)
    read = read_any if name == "all" else targets.TARGETS[name].read
    atheris.Setup(sys.argv, lambda data: read(bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
