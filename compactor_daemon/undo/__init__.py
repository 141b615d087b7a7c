"""Undoes writes: those of dead writers, completed ones (`rollback`, `restore`), plans (`unschedule`); savepoints."""
