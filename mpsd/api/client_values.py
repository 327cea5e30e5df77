"""Generate the values of the Python client from the declarations of the results (`make docs`).

    python -m mpsd.api.client_values clients/python/mpsd_client
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from mpsd.wire import arena_results, daemon_results, fault_results, lease_results, service_results
from mpsd.wire.fields import Field, Result

MODULES = (daemon_results, lease_results, fault_results, arena_results, service_results)

_WIDTH = 128
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def source_of(module: ModuleType) -> str:
    """Return the source of the client's module with the values of these results."""
    made = [each for each in vars(module).values() if isinstance(each, Result) and each.name]
    body = "".join(map(_class, made))
    about = (module.__doc__ or "").partition(";")[0].rstrip(".\n")
    head = [f'"""{about}.  `make docs` makes this module."""', ""]
    head += ["from collections.abc import Mapping"] if "Mapping[" in body else []
    head += ["from dataclasses import dataclass"]
    head += ["from typing import Any"] if "Any]" in body else []
    head += ["", "from mpsd_client._selector import Selector"] if "Selector" in body else []
    return "\n".join(head) + "\n" + body


def _class(of: Result) -> str:
    base = f"({of.extends.name})" if of.extends else ""
    lines = [f"class {of.name}{base}:", f'    """{of.what}"""', ""]
    for each in of.own:
        lines += _lines(each)
    lines += [f"    {of.descriptors}"] if of.descriptors else []
    return "\n\n@dataclass(frozen=True, slots=True)\n" + "\n".join(lines) + "\n"


def _lines(of: Field) -> Iterator[str]:
    line = f"    {of.name}: {of.kind.hint}"
    meaning = re.sub(r"\bnil\b", "None", _LINK.sub(r"\1", of.meaning))
    if len(line) + len(meaning) + 4 <= _WIDTH:
        yield f"{line}  # {meaning}" if meaning else line
    else:
        yield from textwrap.wrap(meaning, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")
        yield line


def main(folder: Path) -> None:
    for module in MODULES:
        (folder / name_of(module)).write_text(source_of(module))


def name_of(module: ModuleType) -> str:
    return f"_{module.__name__.rpartition('.')[2].replace('_results', '_values')}.py"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
