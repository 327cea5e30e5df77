"""`mpsctl service run`: keep the members of a service running, as the user who started it.  mpsd's docs/services.md.

    plan, restarts      decide what to start, stop and hand over, and when to restart: pure
    settings            the desired settings: from the command line first, then from the service
    groups              match members with children
    children            processes, one by one; child_group has all of them, log_writer their output
    ending              end a child through mpsd
    follower            follow the state of the service
    runner              the deciding main thread, and the threads that wait
"""
