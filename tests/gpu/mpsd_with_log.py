"""mpsd with a file in the place of /dev/kmsg, into which no program can write a record of the driver.

    mpsd_with_log.py FILE ARGUMENTS OF mpsd

The record of a lost GPU that the section replica_lost writes is the only thing there that is made up.
"""

import runpy
import sys
from pathlib import Path

import mpsd.app.settings

FILE = Path(sys.argv.pop(1))
mpsd.app.settings.kernel_log = lambda config, environ: FILE
sys.argv[0] = "mpsd"
runpy.run_module("mpsd", run_name="__main__", alter_sys=True)
