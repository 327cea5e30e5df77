"""Services: who serves an arena, who comes next, and how one takes over from the other (docs/services.md)."""
