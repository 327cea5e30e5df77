"""Whether a client that starts now would be served, and what mpsd watches of itself for that."""
