"""A program whose schedule gets no image: it prints what that says, as JSON."""

import sys
import time

from arena_looks import MIB, say
from mpsd_client import Arena, ImageSchedule, _schedule

_schedule.START_SECONDS = 1.0
images = ImageSchedule(0.05, sys.argv[1])
with Arena.create("reported", 8 * MIB) as arena:
    arena.allocate(2 * MIB)
    arena.commit()
    while not images.trouble:
        images.step_done(arena)
        time.sleep(0.01)
    say(trouble=images.trouble, failed=images.failed, taken=images.taken)
    images.end()
