"""Decisions about leases and admission: matching, budgets, shares, the order of the queue.  Pure."""
