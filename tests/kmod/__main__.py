"""python -m tests.kmod [--kept] [--last STEP] [CASE...]: run the cases, and print the table of what came of them.

Without names it takes all cases of cases.py, and runs those without a result of kmod/ as it is: more than an hour on two cores
where none was run before.  --last says after which step to end; --kept runs nothing.  The exit status is 0 if nothing failed.
"""

import argparse
import sys
import time

from tests.kmod.cases import CASES, Case
from tests.kmod.distributions import Unavailable
from tests.kmod.table import Row, Step, kept, render, skipped_row
from tests.kmod.works import Works


def is_known(case: Case, last: Step) -> bool:
    row = kept(case)
    return row is not None and row.shows(last)


def run(cases: list[Case], last: Step) -> dict[str, Row]:
    """The rows of cases that were run now."""
    works = Works(cases, is_all=True, last=last)
    try:
        for case in cases:
            try:
                works.boot(case)
            except Unavailable:
                pass  # its row says why
            except Exception as exc:
                print(f"{case.name}: {exc}", file=sys.stderr)
            print(f"{time.strftime('%H:%M:%S')} {case.name}: done", file=sys.stderr, flush=True)
    finally:
        works.close()
    return works.rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kmod", description=__doc__)
    parser.add_argument("--kept", action="store_true", help="print what is known; run nothing")
    parser.add_argument("--last", choices=[each.name.lower() for each in Step], default=Step.BOOTED.name.lower())
    parser.add_argument("case", nargs="*", help=", ".join(each.name for each in CASES))
    asked = parser.parse_args()
    chosen = [each for each in CASES if not asked.case or each.name in asked.case]
    if unknown := set(asked.case) - {each.name for each in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    last = Step[asked.last.upper()]
    due = [each for each in chosen if asked.case or not is_known(each, last)]
    ran = {} if asked.kept else run(due, last)
    rows = {each.name: kept(each) or ran.get(each.name) or skipped_row(each, "never run here") for each in chosen}
    print("\n".join(render(rows)))
    return 0 if all(row.is_good for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
