"""The decision about health, from facts.  Pure."""
