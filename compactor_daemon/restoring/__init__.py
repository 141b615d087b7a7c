"""Undoes completed writes: the newest one (`rollback`), or all after an instant (`restore`)."""
