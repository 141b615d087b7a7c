"""Which clock and time zone an instant may be chosen by: what the table's own timeline and storage prove.

`evidence` judges, `guard` refuses, `options` is what a user may set.

May import: format, ground, storage.
"""
