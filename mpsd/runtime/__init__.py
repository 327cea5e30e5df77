"""Everything that waits or owns resources: tasks, sockets, the store, the keeper."""
