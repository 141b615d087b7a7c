"""The tables of a lake: which there are, which this daemon serves, and how its slots are shared among them."""
