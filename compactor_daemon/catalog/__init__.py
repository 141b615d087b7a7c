"""The tables of a catalog: which there are, which this daemon serves, and how its slots are shared among them."""
