"""Show the options to people: annotated TOML, and docs/configuration.md.

Both are generated from the declarations of the options, so that they cannot differ from the code.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from mpsd.config import schema
from mpsd.config.loading import DEFAULT_FILE
from mpsd.config.options import OPTIONS, Config
from mpsd.config.schema import Option

_WIDTH = 100

_INTRODUCTION = f"""\
# Configuration

This page is generated: `python -m mpsd config --markdown`. A sample file with every option is printed by
`mpsd config --defaults`, the values in force by `mpsd config --print`, and `mpsd check` lists mistakes.

mpsd reads one TOML file: `--config FILE`, else `$MPSD_CONFIG`, else `{DEFAULT_FILE}`, which alone may be absent.
Later wins: default, file, environment variable, command line. An unknown option, a wrong type or a value out of range is
refused, all of them at once, and the daemon does not start; at a reload (SIGHUP) it goes on with what it had.

An environment variable that is empty counts as absent, except `CUDA_VISIBLE_DEVICES`: empty, it means no device at all,
and is refused, because clients of a daemon without a device run without MPS and without limits.

**Reload**: "yes" is put in force by SIGHUP for what happens from then on; "restart" needs a new mpsd, which running
clients do not notice.
"""


def render_toml(config: Config, *, commented: bool = False) -> str:
    """Return every option with its help, its range and the value it has in `config`, as a file that mpsd reads.

    `commented`: the values are commented out, so that a sample file does not freeze today's defaults.
    """
    mark = "#" if commented else ""
    lines = [f"# mpsd configuration: {DEFAULT_FILE}, or --config FILE.  Every option; see docs/configuration.md."]
    for name, options in _sections():
        if name:
            lines += ["", f"[{name}]"]
        for each in options:
            value = schema.value_at(config, each.key)
            lines += ["", *(f"# {line}" for line in _wrap(each.help)), f"# {_facts(each)}"]
            lines.append(f"{mark}{each.key.rpartition('.')[2]} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def render_markdown() -> str:
    """Return the whole of docs/configuration.md."""
    parts = [_INTRODUCTION]
    for name, options in _sections():
        rows = [f"| {_cell(each)} |" for each in options]
        title = f"## [{name}]" if name else "## Top level"
        head = [title, "", "| option | default | accepted | reload | meaning |", "|---|---|---|---|---|"]
        parts.append("\n".join([*head, *rows, ""]))
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, list[Option]]]:
    for name, options in groupby(OPTIONS.values(), key=lambda each: each.key.rpartition(".")[0]):
        yield name, list(options)


def _facts(option: Option) -> str:
    facts = [f"Accepted: {option.accepted}."]
    if option.environ:
        facts.append(f"Environment: {option.environ}.")
    if option.needs_restart:
        facts.append("Needs a restart.")
    return " ".join(facts)


def _cell(option: Option) -> str:
    meaning = option.help + (f" Environment: `{option.environ}`." if option.environ else "")
    reload = "restart" if option.needs_restart else "yes"
    name = option.key.rpartition(".")[2]
    cells = (f"`{name}`", f"`{_toml(option.default)}`", option.accepted, reload, meaning)
    return " | ".join(cell.replace("|", "\\|") for cell in cells)


def _toml(value: Any) -> str:
    """Return a TOML value; JSON's strings, numbers and booleans are TOML's."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return json.dumps(value, ensure_ascii=False)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
