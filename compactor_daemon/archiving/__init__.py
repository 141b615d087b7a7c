"""Archives the instants of a table: looks at it, takes the lock, and moves what may go."""
