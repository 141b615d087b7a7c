"""The state of a table's pending compactions: which process works on each, and why the others wait."""
