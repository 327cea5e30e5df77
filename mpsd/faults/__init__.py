"""The fault sources, one file each, and the incidents, measures and actions that follow (docs/faults.md)."""
