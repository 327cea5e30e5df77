"""mpsd's own log, and where its lines go."""
