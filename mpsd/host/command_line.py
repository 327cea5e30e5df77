"""How mpsd's programs report a wrong command line: one line with what was found, and exit status 2.

mpsctl, which is a package of its own, does so too (clients/mpsctl/mpsctl/arguments.py).
"""

import argparse
from typing import Any, NoReturn

USAGE = 2


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        said = message.replace("the following arguments are required", "missing")
        self.exit(USAGE, f"{self.prog}: {said}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        import difflib  # for mistakes only

        likely = difflib.get_close_matches(value, list(action.choices), 3)
        hint = f"did you mean {' or '.join(likely)}?" if likely else f"accepted: {', '.join(action.choices)}"
        self.error(f'unknown command "{value}"; {hint}')
