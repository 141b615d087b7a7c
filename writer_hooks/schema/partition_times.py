"""Partition values of the TIMESTAMP key generator: points in time, formatted by a pattern (vectorised).

The options are in hoodie.properties, under names that begin with `hoodie.keygen.timebased.`:

    timestamp.type              UNIX_TIMESTAMP, EPOCHMILLISECONDS, EPOCHMICROSECONDS, SCALAR (with
                                timestamp.scalar.time.unit): a number of units, cut to milliseconds towards zero;
                                for a timestamp column its stored number, for a date its days.
                                DATE_STRING, MIXED: text in one of the formats input.dateformat
    output.dateformat           Joda's letters: y year, M month, d day, D day of the year, H and k hour, h and K hour of
                                half a day, a half-day, m minute, s second, S fraction, Z offset; separators, and
                                letters in quotes ('T')
    timezone                    of input and output; or input.timezone and output.timezone separately

Hudi 0.15 does not store timestamp.type, and 1.2 stores none of them for a CUSTOM generator: then the writer must give
them. If a needed zone is missing, Hudi uses that of the writer's machine; phantombase requires it. A null is one unit
after the start of 1970."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.clocks import utc_now
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
_LETTERS = {
    "y": 4,
    "Y": 4,
    "M": 2,
    "d": 2,
    "D": 3,
    "H": 2,
    "h": 2,
    "K": 2,
    "k": 2,
    "m": 2,
    "s": 2,
    "S": 9,
    "a": 1,
    "Z": 2,
}
"""Joda's letters that are known, and how often each may occur. Names of months and days depend on the language of the
writer's machine, names of zones on its Java."""
_READ = "yMdHhKkmsSaZ"
"""Letters that may be in an input format, too."""
_OFFSET = r"[Zz]|[+-]\d{2}(?::?\d{2})?"
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']")
_DAY_MILLIS = 86_400_000
_ALL_YEARS = (-62_167_219_200_000 + _DAY_MILLIS, 253_402_300_800_000 - _DAY_MILLIS)
"""Years 0 to 9999 in milliseconds, less a day for the zone: other years do not have four digits."""
_ZONE_YEARS = (-2_145_916_800_000, 2_145_916_800_000)
"""1902 to 2037: Arrow does not know the clock changes of zones outside these years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimes:
    """How points in time are read and formatted. `nanos`: nanoseconds of one unit of a number, None for text. `inputs`,
    `output`: patterns as in the settings. `input_zone`, `zone`: of the text and of the result; both None: the digits of
    the text do not change."""

    nanos: int | None
    inputs: tuple[str, ...]
    output: str
    input_zone: str | None
    zone: str | None

    @staticmethod
    def of(properties: Mapping[str, str], writer: Mapping[str, str]) -> PartitionTimes:
        """From hoodie.properties, and from the writer's options what the table does not store. UnsupportedError: an
        unknown option or pattern. UsageError: one is missing, or contradicts the table."""
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
                "the table does not record how its partition values are formatted",
                expected=f"{PREFIX}timestamp.type and {PREFIX}output.dateformat",
                found=", ".join(sorted(given)) or "neither",
                todo="Give the options that its other writers use.",
            )
        is_text = kind in ("DATE_STRING", "MIXED")
        unit = given.get("timestamp.scalar.time.unit", "SECONDS").upper() if kind == "SCALAR" else _TYPE_UNITS.get(kind)
        if not is_text and unit not in _UNIT_NANOS:
            raise _unknown("timestamp.type", kind if unit is None else f"{kind} of {unit}")
        inputs: tuple[str, ...] = ()
        if is_text:
            delimiter = given.get("input.dateformat.list.delimiter.regex", ",")
            if delimiter != re.escape(delimiter):
                raise _unknown("input.dateformat.list.delimiter.regex", delimiter)
            patterns = [p.strip() for p in given.get("input.dateformat", "").split(delimiter)]
            inputs = tuple(pattern for pattern in patterns if _tokens("input.dateformat", pattern, _READ))
        both = given.get("timezone")
        read, shown = both or given.get("input.timezone"), both or given.get("output.timezone")
        if is_text and shown is None:
            shown = read  # Hudi then formats in the zone of the input
        parts = _tokens("output.dateformat", output, "".join(_LETTERS))
        says_offset = bool(inputs) and all(
            any(letter == "Z" and count for letter, count, _ in _tokens("input.dateformat", pattern))
            for pattern in inputs
        )
        shows_offset = any(letter == "Z" and count for letter, count, _ in parts)
        if (is_text and shown is not None and read is None and not says_offset) or (
            shown is None and (not is_text or shows_offset)
        ):
            raise UsageError(
                "partition paths of this table depend on the time zone of the writer's machine",
                expected=f"{PREFIX}timezone",
                found="none in the table, none given",
                todo="Give the zone of the table's other writers, for example UTC.",
            )
        return PartitionTimes(
            nanos=None if unit is None else _UNIT_NANOS[unit],
            inputs=inputs,
            output=output,
            input_zone=read and arrow_zone(read),
            zone=shown and arrow_zone(shown),
        )

    def format(self, values: pa.Array, name: str) -> pa.StringArray:
        """The partition values of a column. UsageError: a type or a value that is no such point in time."""
        millis = self._of_text(values, name) if self.nanos is None else self._of_numbers(values, name, self.nanos)
        self._check_years(millis, name)
        moments = millis.cast(pa.timestamp("ms", tz=self.zone))
        shown = [_shown(moments, letter, count) for letter, count, _ in _tokens("output.dateformat", self.output)]
        return pc.binary_join_element_wise(*shown, "") if len(shown) > 1 else shown[0]

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
        elif types.is_timestamp(kind):
            values = values.cast(pa.int64())
        elif types.is_decimal(kind):
            values = pc.trunc(values).cast(pa.int64())  # as by Java's longValue
        elif not types.is_integer(kind):
            raise _wrong_type(name, kind, "an integer, decimal, date or timestamp")
        numbers = pc.fill_null(values.cast(pa.int64()), 1)
        try:
            if nanos < _MILLI_NANOS:
                return pc.divide(numbers, _MILLI_NANOS // nanos)
            return pc.multiply_checked(numbers, nanos // _MILLI_NANOS)
        except pa.ArrowInvalid as error:
            raise UsageError(
                "partition values too large for their time unit",
                found=name,
                todo="Check timestamp_type of the key generator: the unit of the numbers.",
            ) from error

    def _of_text(self, values: pa.Array, name: str) -> pa.Array:
        if not pa.types.is_string(values.type):
            raise _wrong_type(name, values.type, "text")
        start = pa.array([0], pa.timestamp("ms", tz=self.input_zone or "UTC"))
        first = [_shown(start, letter, count) for letter, count, _ in _tokens("input.dateformat", self.inputs[0])]
        text = pc.fill_null(values, "".join(one[0].as_py() for one in first))
        millis = pa.nulls(len(text), pa.int64())
        for pattern in self.inputs:
            millis = pc.coalesce(millis, self._read(text, pattern, name))
        if millis.null_count:
            wrong = text.filter(pc.is_null(millis))
            raise UsageError(
                "partition values that do not fit the table's date formats",
                expected=f"{PREFIX}input.dateformat={','.join(self.inputs)}",
                found=f"{name}: {millis.null_count} of {len(values)} distinct values, like {wrong[0].as_py()!r}",
            )
        return millis

    def _read(self, text: pa.StringArray, pattern: str, name: str) -> pa.Int64Array:
        """The milliseconds of texts in one format; null for other texts."""
        parts = _tokens("input.dateformat", pattern)
        found = pc.extract_regex(text, "^" + "".join(_part_shape(*part) for part in parts) + "$")

        def number(part: str, usual: int) -> pa.Int64Array:
            if found.type.get_field_index(part) < 0:
                return pa.repeat(pa.scalar(usual, pa.int64()), len(text))
            return pc.struct_field(found, part).cast(pa.int64())

        year = number("y", 1970)
        if any(letter == "y" and count == 2 for letter, count, _ in parts):
            year = _of_two_digits(year)
        hour = pc.if_else(pc.equal(number("k", 0), 24), 0, pc.add(number("H", 0), number("k", 0)))
        half = pc.add(hour, pc.add(pc.if_else(pc.equal(number("h", 0), 12), 0, number("h", 0)), number("K", 0)))
        if found.type.get_field_index("a") >= 0:
            later = pc.equal(pc.utf8_upper(pc.struct_field(found, "a")), "PM")
            half = pc.if_else(later, pc.add(half, 12), half)
        digits = [year, number("M", 1), number("d", 1), half, number("m", 0), number("s", 0)]
        padded = [
            pc.utf8_lpad(one.cast(pa.string()), width, "0")
            for one, width in zip(digits, (4, 2, 2, 2, 2, 2), strict=True)
        ]
        joined = pc.binary_join_element_wise(*padded, "-")
        moments = pc.strptime(joined, format="%Y-%m-%d-%H-%M-%S", unit="s", error_is_null=True)
        offset = pc.struct_field(found, "Z") if found.type.get_field_index("Z") >= 0 else None
        if offset is None and self.input_zone is not None:
            try:
                moments = pc.assume_timezone(moments, self.input_zone, ambiguous="earliest", nonexistent="raise")
            except pa.ArrowInvalid as error:
                shown = f"{name}: {error}"
                raise UsageError(
                    "partition values at a time that does not exist in the zone",
                    found=shown,
                    todo="Correct these values, or the time zone of the key generator.",
                ) from error
        seconds = moments.cast(pa.int64())
        if offset is not None and self.zone is not None:
            seconds = pc.subtract(seconds, _offset_seconds(offset))
        millis = pc.multiply(seconds, 1000)
        if found.type.get_field_index("S") < 0:
            return millis
        return pc.add(
            millis, pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(found, "S"), 3, "0"), 0, 3).cast(pa.int64())
        )


def _of_two_digits(year: pa.Int64Array) -> pa.Int64Array:
    """The year that Joda reads from two digits: from 80 years before the current one to 19 years after it."""
    first = utc_now().year - 80
    after = pc.subtract(year, first % 100)
    return pc.add(first, pc.if_else(pc.less(after, 0), pc.add(after, 100), after))


def _offset_seconds(offset: pa.StringArray) -> pa.Int64Array:
    plain = pc.if_else(pc.equal(pc.utf8_upper(offset), "Z"), "+00:00", offset)
    parts = pc.extract_regex(plain, r"^(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{0,2})$")
    minutes = pc.struct_field(parts, "minutes")
    whole = pc.if_else(pc.equal(minutes, ""), "0", minutes).cast(pa.int64())
    seconds = pc.add(pc.multiply(pc.struct_field(parts, "hours").cast(pa.int64()), 3600), pc.multiply(whole, 60))
    return pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), pc.negate(seconds), seconds)


def _shown(moments: pa.Array, letter: str, count: int) -> pa.StringArray:
    """One part of an output format, for each point in time. `count` 0: literal text."""
    if not count:
        return pa.repeat(pa.scalar(letter, pa.string()), len(moments))
    local = pc.local_timestamp(moments) if moments.type.tz else moments  # Arrow's parts lose seconds of old zones
    hour = pc.hour(local)
    if letter == "a":
        return pc.if_else(pc.less(hour, 12), "AM", "PM")
    if letter == "Z":
        text = pc.strftime(moments.cast(pa.timestamp("s", tz=moments.type.tz), safe=False), format="%z")
        return text if count == 1 else pc.replace_substring_regex(text, r"(\d{2})$", r":\1")
    if letter == "S":
        fraction = pc.utf8_lpad(pc.millisecond(local).cast(pa.string()), 3, "0")
        return pc.utf8_slice_codeunits(pc.utf8_rpad(fraction, count, "0"), 0, count)
    half = pc.if_else(pc.greater_equal(hour, 12), pc.subtract(hour, 12), hour)
    numbers = {
        "y": lambda: pc.year(local),
        "Y": lambda: pc.year(local),
        "M": lambda: pc.month(local),
        "d": lambda: pc.day(local),
        "D": lambda: pc.day_of_year(local),
        "H": lambda: hour,
        "k": lambda: pc.if_else(pc.equal(hour, 0), 24, hour),
        "K": lambda: half,
        "h": lambda: pc.if_else(pc.equal(half, 0), 12, half),
        "m": lambda: pc.minute(local),
        "s": lambda: pc.second(local),
    }
    text = numbers[letter]().cast(pa.string())
    if letter in "yY" and count == 2:
        text = pc.utf8_slice_codeunits(pc.utf8_lpad(text, 4, "0"), 2, 4)
    return pc.utf8_lpad(text, count, "0")


def _options(properties: Mapping[str, str]) -> dict[str, str]:
    return {k.removeprefix(PREFIX): v.strip() for k, v in properties.items() if k.startswith(PREFIX) and v.strip()}


def arrow_zone(name: str) -> str:
    """Java's spelling of a zone (`GMT+8:00`) in Arrow's. UnsupportedError: unknown; Java would take GMT."""
    offset = re.fullmatch(r"(?:GMT|UTC)([+-])(\d{1,2})(?::?(\d{2}))?", name, re.ASCII)
    if offset and int(offset[2]) < 24 and int(offset[3] or 0) < 60:
        return f"{offset[1]}{int(offset[2]):02d}:{offset[3] or '00'}"
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _unknown("timezone", name) from error
    return name


_Part: TypeAlias = tuple[str, int, bool]
"""A letter and its count, or a literal text and 0; and whether another number follows directly."""


def _tokens(option: str, pattern: str, letters: str = "".join(_LETTERS)) -> tuple[_Part, ...]:
    """The parts of a pattern. UnsupportedError: one that is not known."""
    found: list[tuple[str, int]] = []
    end = 0
    for token in _TOKEN.finditer(pattern):
        if token.start() != end:
            break
        end, text = token.end(), token[0]
        if token[2]:
            if token[2] not in letters or len(text) > _LETTERS[token[2]]:
                raise _unknown(option, pattern)
            found.append((token[2], len(text)))
        else:
            found.append(("'" if text == "''" else token[1].replace("''", "'") if text.startswith("'") else text, 0))
    once = [letter for letter, count in found if count]
    if not pattern or end != len(pattern) or (letters == _READ and len(set(once)) != len(once)):
        raise _unknown(option, pattern)
    after = [*found[1:], ("", 0)]
    return tuple((*part, bool(next_[1]) and next_[0] not in "aZ") for part, next_ in zip(found, after, strict=True))


def _part_shape(letter: str, count: int, number_follows: bool) -> str:
    """A regular expression of one part. Joda reads `1` for `MM`, too. That may be a mistake, so here a number has as
    many digits as letters; for one letter it may have two."""
    if not count:
        return re.escape(letter)
    if letter == "a":
        return "(?P<a>AM|PM|am|pm)"
    if letter == "Z":
        return f"(?P<Z>{_OFFSET})"
    alone = not number_follows
    least = 1 if letter == "S" and alone else count
    most = 2 if count == 1 and alone and letter not in "yS" else count
    return rf"(?P<{letter}>\d{{{least},{most}}})"


def _unknown(option: str, found: str) -> UnsupportedError:
    return UnsupportedError(
        f"this {PREFIX}{option} is not supported for writing",
        expected={
            "timestamp.type": f"{', '.join(_TYPE_UNITS)}, SCALAR or DATE_STRING",
            "timezone": "a name such as UTC, Europe/Paris or GMT+8:00",
            "input.dateformat.list.delimiter.regex": "plain text",
        }.get(option, f"only the letters {' '.join(_LETTERS)}, separators and quoted text"),
        found=found or "nothing",
        todo="Write this table with Hudi.",
    )


def _wrong_type(name: str, kind: pa.DataType, expected: str) -> UsageError:
    return UsageError("a column of this type is not a moment", expected=expected, found=f"{name}: {kind}")
