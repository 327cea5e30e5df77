"""What mpsd does with the UVM descriptors of its clients: listens for their faults, lays the shield, and holds them until the
client's work is over.  Prose: docs/uvm.md."""
