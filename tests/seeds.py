"""The seeds of random tests: a few that are the same in every run, and others that are new in each.

pytest's header has the seed of the run, and so does every failure; MPSD_TEST_SEED=N repeats that run.
"""

import os
import random
import secrets

VARIABLE = "MPSD_TEST_SEED"
_BELOW = 1 << 31  # an int in C
RUN_SEED = int(os.environ.get(VARIABLE) or secrets.randbelow(_BELOW))
os.environ[VARIABLE] = str(RUN_SEED)  # also of programs that tests start
HOW_TO_REPEAT = f"{VARIABLE}={RUN_SEED} repeats the random examples of this run"


def seeds(fixed: int, fresh: int) -> list[int]:
    """For a test's parameter: 1, 2, ... and as many of this run's.  Never 0: there the C programs' generators stand still."""
    chance = random.Random(RUN_SEED)
    return [*range(1, fixed + 1), *(chance.randrange(fixed + 1, _BELOW) for _ in range(fresh))]
