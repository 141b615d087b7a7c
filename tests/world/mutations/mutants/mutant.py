"""What a mutant is."""

from __future__ import annotations

Mutant = tuple[str, str, str, str]
"""(path of the module without its ending; text, text instead, test modules).

The text stands once in the module. Test modules are named without `test_`: `name`, or
`folder/name` where two folders have one.
"""
