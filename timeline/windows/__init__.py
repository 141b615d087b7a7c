"""Windows of time on a table: its state at a moment, the writes between two moments, and how far back both go."""
