"""Our compactor and real Hudi at work on the same tables."""
