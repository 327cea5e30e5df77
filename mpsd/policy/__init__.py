"""What should happen: pure functions over snapshots.  They refuse to know sockets, clocks and processes."""
