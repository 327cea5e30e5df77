"""A member of an elastic service, which works for a part of its time and counts.

    elastic_member.py NAME REPORT LOAD

LOAD has the fraction of time in which it works, now.  Each step adds its number to REPORT when it begins: one that was not
published is done again.
"""

import os
import sys
import time
from pathlib import Path

from mpsd_client import Dismissed, Service, Term
from service_member import begin_cuda

CYCLE_SECONDS = 0.1


def serve(term: Term, report: Path, load: Path) -> None:
    if term.arena.layout is None:  # without contents no standby is ready
        term.arena.allocate(16)
        term.arena.commit({})
    n = int(term.record["n"]) if term.record else 0
    with report.open("a", buffering=1) as file:
        while not term.is_over:
            busy = float(load.read_text())
            with term.at_work():
                n += 1
                file.write(f"{n}\n")
                time.sleep(CYCLE_SECONDS * busy)
            term.publish(n=n)
            time.sleep(CYCLE_SECONDS * (1.0 - busy))


def main(name: str, report: Path, load: Path) -> int:
    service = Service(name, capacity=2 << 20, schema={"n": "uint64"})
    begin_cuda()
    service.open()
    print(f"{os.getpid()} is there", flush=True)
    try:
        while True:
            with service.active() as term:
                serve(term, report, load)
    except Dismissed:
        return 3


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
