"""Who faults: what is known, then each culprit as soon as mpsd has it.

    python culprits.py                     for ever
    python culprits.py --seconds 60        until a minute has passed without an event
"""

import argparse
from collections.abc import Mapping
from typing import Any

from mpsd_client import Client, Lost, calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="end after so long without news")
    asked = parser.parse_args()
    with Client(program="culprits.py") as mpsd:
        mpsd.subscribe("fault.culprit")
        for fault in mpsd.pages(calls.fault_list()):
            print(f"fault {fault.number}: {fault.fault_class} in {fault.domain}, {fault.confidence}, {fault.hurt} hurt")
        for event in mpsd.events(timeout_seconds=asked.seconds):
            if isinstance(event, Lost):
                print(f"{event.count} are missing here", flush=True)
            else:
                print(f"fault {event.facts['number']}: it was {name(event.facts.get('culprit'))}", flush=True)


def name(culprit: Mapping[str, Any] | None) -> str:
    """Return the culprit as text.  Events name it only to operators; `fault_get` also shows users their own processes."""
    if not culprit:
        return "somebody"
    program = culprit["program"].encode("unicode_escape").decode()  # the user chose it: it must not control the terminal
    return f"{program}[{culprit['pid']}] of user {culprit['uid']}"


if __name__ == "__main__":
    main()
