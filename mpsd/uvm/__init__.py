"""Use the UVM descriptors of clients: report their faults, map the shield, and hold them until the client's work is over.

Prose: docs/uvm.md.
"""
