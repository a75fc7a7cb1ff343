"""Chat turns as data, and texts that are too long."""
