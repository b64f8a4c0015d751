"""Numbers as text with a unit."""

from __future__ import annotations

from collections.abc import Sequence

_KILO = 1000
_SHORTEST = 0.001  # µs; a shorter time has no meaning for a launch
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def figure(value: float | None, unit: str = "") -> str:
    """Return three significant digits without an exponent; a dash for None."""
    if value is None:
        return "–"
    text = f"{value:#.3g}"
    if "e" in text or abs(value) >= 100:
        text = f"{value:,.0f}" if abs(value) >= 1 else f"{value:.6f}"
    return f"{text.rstrip('.')} {unit}".rstrip()


def duration(milliseconds: float | None) -> str:
    """Return a time in ms or µs; a dash for None."""
    if milliseconds is None:
        return "–"
    return figure(milliseconds, "ms") if milliseconds >= 1 else figure(1000 * milliseconds, "µs")


def memory(size: float | None) -> str:
    """Return a number of bytes with a binary unit, such as "12.3 MiB"; a dash for None."""
    if size is None:
        return "–"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return figure(size / scale, unit)
    return f"{size:.0f} B"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def lines_in_words(lines: Sequence[int]) -> str:
    """Return source lines by number, such as "line 8" or "lines 8, 10"."""
    return f"line{'' if len(lines) == 1 else 's'} {', '.join(map(str, lines))}"


def in_bytes(count: float) -> str:
    """Return a number of bytes with three digits and a decimal unit, such as "12.3 MB"."""
    return _scaled(count, _BYTE_UNITS)


def in_figures(number: float) -> str:
    """Return a number with three digits and a prefix, such as "12.3 M"."""
    return _scaled(number, ("", "k", "M", "G", "T")).rstrip()


def in_time(microseconds: float | None) -> str:
    """Return a time in µs, ms or s; "?" for None."""
    if microseconds is None:
        return "?"
    if 0 < microseconds < _SHORTEST:
        return f"<{_SHORTEST} µs"
    return _scaled(microseconds, ("µs", "ms", "s"))


def _scaled(number: float, units: Sequence[str]) -> str:
    """Return three digits without an exponent in the largest unit that the number reaches."""
    for unit in units:
        text = f"{number:.3g}"
        if abs(float(text)) < _KILO or unit == units[-1]:
            return f"{number:,.0f} {unit}" if "e+" in text else f"{text} {unit}"
        number /= _KILO
    raise AssertionError("the last unit takes all")
