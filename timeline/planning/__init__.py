"""What to compact, when, and how much at once: strategies, limits, and the plan in Hudi's form."""
