"""Numbers as text with a unit."""

from __future__ import annotations

from collections.abc import Sequence

_KILO = 1000
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
    for unit in _BYTE_UNITS:
        if count < _KILO or unit == _BYTE_UNITS[-1]:
            return f"{count:.3g} {unit}"
        count /= _KILO
    raise AssertionError("the last unit takes all")


def in_figures(number: float) -> str:
    """Return a number with three digits and a prefix, such as "12.3 M"."""
    for unit in ("", " k", " M", " G", " T"):
        if number < _KILO or unit == " T":
            return f"{number:.3g}{unit}"
        number /= _KILO
    raise AssertionError("the last unit takes all")


def in_time(microseconds: float | None) -> str:
    """Return a time in µs or ms; "?" for None."""
    if microseconds is None:
        return "?"
    return f"{microseconds:.3g} µs" if microseconds < _KILO else f"{microseconds / _KILO:.3g} ms"
