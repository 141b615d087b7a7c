"""Partition values of the TIMESTAMP key generator: moments formatted by a pattern (pure, vectorised).

The options are in hoodie.properties, under names that begin with `hoodie.keygen.timebased.`:

    timestamp.type              UNIX_TIMESTAMP, EPOCHMILLISECONDS, EPOCHMICROSECONDS, SCALAR (with
                                timestamp.scalar.time.unit): a number of units, cut to milliseconds towards zero;
                                for a timestamp column its stored number, for a date its days.
                                DATE_STRING, MIXED: text in one of the formats input.dateformat
    output.dateformat           yyyy yy MM dd HH mm ss, separators, and letters in quotes ('T')
    timezone                    of input and output; or input.timezone and output.timezone separately

Hudi 0.15 does not store timestamp.type, and 1.2 stores none of them for a CUSTOM generator: then the writer must give
them. If a needed zone is missing, Hudi uses that of the writer's machine; phantombase requires it. A null is one unit
after the start of 1970.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.errors import UnsupportedError, UsageError

PREFIX = "hoodie.keygen.timebased."

_PARSER = "hoodie.keygen.datetime.parser.class"
_DEFAULT_PARSER = "org.apache.hudi.keygen.parser.HoodieDateTimeParser"
_TYPE_UNITS = {"UNIX_TIMESTAMP": "SECONDS", "EPOCHMILLISECONDS": "MILLISECONDS", "EPOCHMICROSECONDS": "MICROSECONDS"}
_UNIT_NANOS = {
    "NANOSECONDS": 1,
    "MICROSECONDS": 10**3,
    "MILLISECONDS": 10**6,
    "SECONDS": 10**9,
    "MINUTES": 60 * 10**9,
    "HOURS": 3600 * 10**9,
    "DAYS": 86_400 * 10**9,
}
_MILLI_NANOS = 10**6

# Joda's letters with their C names and what they match.
_LETTERS = {
    "yyyy": ("%Y", r"\d{4}"),
    "yy": ("%y", r"\d{2}"),
    "MM": ("%m", r"\d{2}"),
    "dd": ("%d", r"\d{2}"),
    "HH": ("%H", r"\d{2}"),
    "mm": ("%M", r"\d{2}"),
    "ss": ("%S", r"\d{2}"),
}
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']")
_DAY_MILLIS = 86_400_000
_ALL_YEARS = (-62_167_219_200_000 + _DAY_MILLIS, 253_402_300_800_000 - _DAY_MILLIS)
"""Years 0 to 9999 in milliseconds, less a day for the zone: other years do not have four digits."""
_ZONE_YEARS = (-2_145_916_800_000, 2_145_916_800_000)
"""1902 to 2037: Arrow does not know the clock changes of zones outside these years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimes:
    """How moments are read and formatted.

    `nanos`: nanoseconds of one unit of a number, None for text. `inputs`: the patterns of text as (C format, regular
    expression). `input_zone`, `zone`: of the text and of the result; both None: the digits of the text do not change.
    """

    nanos: int | None
    inputs: tuple[tuple[str, str], ...]
    output: str
    input_zone: str | None
    zone: str | None

    @staticmethod
    def of(properties: Mapping[str, str], writer: Mapping[str, str]) -> PartitionTimes:
        """From hoodie.properties, and from the writer's options (same names) what the table does not store.

        UnsupportedError: an unknown option or pattern. UsageError: a needed option is missing, or the writer
        contradicts the table.
        """
        parser = properties.get(_PARSER) or writer.get(_PARSER) or ""
        if parser and parser != _DEFAULT_PARSER:
            raise UnsupportedError("this date parser is not supported", expected=_DEFAULT_PARSER, found=parser)
        given = {**_options(writer), **_options(properties)}
        for name, value in _options(writer).items():
            if given[name] != value:
                raise UsageError(
                    f"{PREFIX}{name} contradicts the table", expected=given[name], found=value, todo="Leave it out."
                )
        kind, output = given.get("timestamp.type", ""), given.get("output.dateformat", "")
        if not kind or not output:
            raise UsageError(
                "the table does not say how its partition values are formatted",
                expected=f"{PREFIX}timestamp.type and {PREFIX}output.dateformat",
                found=", ".join(sorted(given)) or "neither",
                todo="Give the options that its other writers use.",
            )
        is_text = kind in ("DATE_STRING", "MIXED")
        unit = given.get("timestamp.scalar.time.unit", "SECONDS").upper() if kind == "SCALAR" else _TYPE_UNITS.get(kind)
        if not is_text and unit not in _UNIT_NANOS:
            raise _unknown("timestamp.type", kind if unit is None else f"{kind} of {unit}")
        inputs: tuple[tuple[str, str], ...] = ()
        if is_text:
            delimiter = given.get("input.dateformat.list.delimiter.regex", ",")
            if delimiter != re.escape(delimiter):
                raise _unknown("input.dateformat.list.delimiter.regex", delimiter)
            patterns = [p.strip() for p in given.get("input.dateformat", "").split(delimiter)]
            inputs = tuple(_translated("input.dateformat", pattern) for pattern in patterns)
        both = given.get("timezone")
        read, shown = both or given.get("input.timezone"), both or given.get("output.timezone")
        if is_text and shown is None:
            shown = read  # Hudi then formats in the zone of the input
        if (is_text and shown is not None and read is None) or (not is_text and shown is None):
            raise UsageError(
                "partition paths of this table depend on the time zone of the writer's machine",
                expected=f"{PREFIX}timezone",
                found="none in the table, none given",
                todo="Give the zone of the table's other writers, for example UTC.",
            )
        return PartitionTimes(
            nanos=None if unit is None else _UNIT_NANOS[unit],
            inputs=inputs,
            output=_translated("output.dateformat", output)[0],
            input_zone=read and arrow_zone(read),
            zone=shown and arrow_zone(shown),
        )

    def format(self, values: pa.Array, name: str) -> pa.StringArray:
        """The partition values of a column. UsageError: a type or a value that is not such a moment."""
        millis = self._of_text(values, name) if self.nanos is None else self._of_numbers(values, name, self.nanos)
        self._check_years(millis, name)
        seconds = pc.floor(pc.divide(millis.cast(pa.float64()), 1000.0)).cast(pa.int64())
        return pc.strftime(seconds.cast(pa.timestamp("s", tz=self.zone)), format=self.output)

    def _check_years(self, millis: pa.Array, name: str) -> None:
        has_rules = any(
            zone and zone not in ("UTC", "GMT") and zone[0] not in "+-" for zone in (self.zone, self.input_zone)
        )
        first, last = _ZONE_YEARS if has_rules else _ALL_YEARS
        ends = pc.min_max(millis).as_py()
        if ends["min"] is not None and not (ends["min"] >= first and ends["max"] < last):
            raise UsageError(
                "partition values outside the years that can be formatted",
                expected="1902 to 2037 in a time zone with clock changes" if has_rules else "0 to 9999",
                found=name,
                todo="Check the time unit.",
            )

    def _of_numbers(self, values: pa.Array, name: str, nanos: int) -> pa.Array:
        types, kind = pa.types, values.type
        if types.is_date32(kind):
            values = values.cast(pa.int32())
        elif types.is_timestamp(kind) or types.is_decimal(kind):
            values = _whole(values)
        elif not types.is_integer(kind):
            raise _wrong_type(name, kind, "a whole number, decimal, date or timestamp")
        numbers = pc.fill_null(values.cast(pa.int64()), 1)
        try:
            if nanos < _MILLI_NANOS:
                return pc.divide(numbers, _MILLI_NANOS // nanos)
            return pc.multiply_checked(numbers, nanos // _MILLI_NANOS)
        except pa.ArrowInvalid as error:
            raise UsageError("partition values too large for their time unit", found=name) from error

    def _of_text(self, values: pa.Array, name: str) -> pa.Array:
        if not pa.types.is_string(values.type):
            raise _wrong_type(name, values.type, "text")
        first_format = self.inputs[0][0]
        start = pa.array([0], pa.int64()).cast(pa.timestamp("s", tz=self.input_zone))
        text = pc.fill_null(values, pc.strftime(start, format=first_format)[0])
        moments = pa.nulls(len(text), pa.timestamp("s"))
        for format_, shape in self.inputs:
            fitting = pc.if_else(pc.match_substring_regex(text, shape), text, None)
            moments = pc.coalesce(moments, pc.strptime(fitting, format=format_, unit="s", error_is_null=True))
        if moments.null_count:
            wrong = text.filter(pc.is_null(moments))
            raise UsageError(
                "partition values that do not fit the table's date formats",
                expected=", ".join(f for f, _ in self.inputs),
                found=f"{name}: {moments.null_count} of {len(values)} distinct values, like {wrong[0].as_py()!r}",
            )
        if self.input_zone is not None:
            try:
                moments = pc.assume_timezone(moments, self.input_zone, ambiguous="earliest", nonexistent="raise")
            except pa.ArrowInvalid as error:
                found = f"{name}: {error}"
                raise UsageError("partition values at a time that does not exist in the zone", found=found) from error
        return pc.multiply(moments.cast(pa.int64()), 1000)


def _options(properties: Mapping[str, str]) -> dict[str, str]:
    return {k.removeprefix(PREFIX): v.strip() for k, v in properties.items() if k.startswith(PREFIX) and v.strip()}


def _whole(values: pa.Array) -> pa.Array:
    """The stored number of a timestamp; a decimal without its fraction, cut as by Java's longValue."""
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else pc.trunc(values).cast(pa.int64())


def arrow_zone(name: str) -> str:
    """A time zone in Java's spelling (also `GMT+8:00`) in Arrow's spelling.

    UnsupportedError: an unknown name; Java would silently use GMT for it.
    """
    offset = re.fullmatch(r"(?:GMT|UTC)([+-])(\d{1,2})(?::?(\d{2}))?", name)
    if offset and int(offset[2]) < 24 and int(offset[3] or 0) < 60:
        return f"{offset[1]}{int(offset[2]):02d}:{offset[3] or '00'}"
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _unknown("timezone", name) from error
    return name


def _translated(option: str, pattern: str) -> tuple[str, str]:
    """A pattern as (C format, regular expression that the whole text must match)."""
    format_, shape, end = "", "", 0
    for token in _TOKEN.finditer(pattern):
        if token.start() != end:
            break
        end = token.end()
        text = token[0]
        if text in _LETTERS:
            letters, digits = _LETTERS[text]
            format_, shape = format_ + letters, shape + digits
        elif token[2]:
            raise _unknown(option, pattern)
        else:
            literal = "'" if text == "''" else token[1].replace("''", "'") if text.startswith("'") else text
            format_, shape = format_ + literal.replace("%", "%%"), shape + re.escape(literal)
    if not pattern or end != len(pattern):
        raise _unknown(option, pattern)
    return format_, f"^{shape}$"


def _unknown(option: str, found: str) -> UnsupportedError:
    return UnsupportedError(
        f"this {PREFIX}{option} is not supported for writing",
        expected={
            "timestamp.type": f"{', '.join(_TYPE_UNITS)}, SCALAR or DATE_STRING",
            "timezone": "a name such as UTC, Europe/Paris or GMT+8:00",
            "input.dateformat.list.delimiter.regex": "plain text",
        }.get(option, f"only {' '.join(_LETTERS)}, separators and quoted text"),
        found=found or "nothing",
        todo="Write this table with Hudi.",
    )


def _wrong_type(name: str, kind: pa.DataType, expected: str) -> UsageError:
    return UsageError("a column of this type is not a moment", expected=expected, found=f"{name}: {kind}")
