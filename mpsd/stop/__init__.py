"""End clients safely, and end them all when mpsd quits."""
