"""Everything that awaits and owns: tasks, sockets, the store, the keeper."""
