"""A delta commit from its instant to its completed file, and the work after it: plans, compaction, clean-up."""
