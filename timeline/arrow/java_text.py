"""Floats as the texts that Java gives them, which Hudi stores where a column of floats became one of text (pure).

    1.0, 0.001, 1234567.9       from a thousandth to below ten million
    1.0E7, 1.234E-5             else: one digit, a point, the others, the power of ten
    NaN, Infinity, -Infinity

The digits are the fewest that read back as the same value, but two at least (4.9E-324), as Java prints since 19
(JDK-4511638); before, it printed some values with one digit more.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_PARTS = r"^(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?(?:e(?P<power>[-+]?[0-9]+))?$"


_LEAST = {pa.float64(): 5e-324, pa.float32(): 2.0**-149}
_FEW_DIGITS = 64
"""So many times the least value, and all below, may need a single digit to read back."""


def java_text(values: Any) -> Any:
    """The texts of an array of float or double."""
    text = values.cast(pa.string())  # 1, 0.001, 1e+15, nan, inf
    size = pc.abs(values)
    least = _LEAST[values.type]
    for times in (
        range(1, _FEW_DIGITS)
        if pc.any(pc.and_(pc.less(size, least * _FEW_DIGITS), pc.greater(size, 0))).as_py()
        else ()
    ):
        text = pc.if_else(pc.equal(size, least * times), _signed(values, f"{least * times:.1e}"), text)
    plain = pc.or_(pc.and_(pc.greater_equal(size, 1e-3), pc.less(size, 1e7)), pc.equal(size, 0.0))
    pointed = pc.if_else(pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, ".0", ""))
    return pc.if_else(pc.is_finite(values), pc.if_else(plain, pointed, _with_power(text)), _named(text))


def _signed(values: Any, text: str) -> Any:
    return pc.if_else(pc.less(values, 0), f"-{text}", text)


def _with_power(text: Any) -> Any:
    parts = pc.extract_regex(text, _PARTS)
    sign, whole, part, power = (pc.fill_null(pc.struct_field(parts, i), "") for i in range(4))
    digits = pc.binary_join_element_wise(whole, part, "")
    known = pc.utf8_ltrim(digits, "0")
    shift = pc.if_else(pc.equal(power, ""), "0", pc.utf8_ltrim(power, "+")).cast(pa.int32())
    before = pc.subtract(
        pc.subtract(pc.utf8_length(whole), 1), pc.subtract(pc.utf8_length(digits), pc.utf8_length(known))
    )
    known = pc.utf8_rtrim(known, "0")
    rest = pc.utf8_slice_codeunits(known, 1)
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    head = pc.binary_join_element_wise(sign, pc.utf8_slice_codeunits(known, 0, 1), "")
    number = pc.binary_join_element_wise(head, rest, ".")
    return pc.binary_join_element_wise(number, pc.add(before, shift).cast(pa.string()), "E")


def _named(text: Any) -> Any:
    for found, java in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        text = pc.if_else(pc.equal(text, found), java, text)
    return text
