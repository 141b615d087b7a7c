"""Verifies completed compactions and clusterings again: files that still exist against its ledger and audit log."""
