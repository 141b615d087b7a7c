"""The instants of a table: the timeline as a value, how it is loaded, and the clock that chooses new instants."""
