"""Verifies completed compactions and stitchings again: files that still exist against its ledger and audit log."""
