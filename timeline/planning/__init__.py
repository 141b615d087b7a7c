"""What to compact, when, and how much at once: triggers, strategies, limits, and the plan in Hudi's form."""
