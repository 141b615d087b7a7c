"""Tests, in folders as the code is. A package, so that no other of that name is taken for it."""
