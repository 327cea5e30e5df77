"""`mpsctl service run`: keeps the members of a service running, as the user who started it.  mpsd's docs/services.md.

    plan, restarts      what to start, to stop, to hand over; when again: pure
    settings            what is wanted: of the command line first, then of the service
    groups              which member is whose child
    children, scribe    processes, and where their output goes
    ending              how a child is ended: through mpsd
    follower            what mpsd says of the service, again and again
    runner              one thread that decides, and others that wait
"""
