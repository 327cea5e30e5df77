"""What one user may take, so that the others keep theirs: shares of uids, turns, places, rates, slots.  Pure."""
