"""Between a client and its domain: who is calling, and a copier of what it does not read."""
