"""Whole-number arithmetic as a shell does it, of what is known."""

from __future__ import annotations

import re

from diagnostics.lint.sources.shell_words import HOLE, SOFT

_ARITHMETIC = re.compile(r"\s*(?:(\d{1,18})|\$?\{?([A-Za-z_]\w*)\}?|(\*\*|[-+*/%()]))")


def calculate(expression: str, variables: dict[str, str]) -> str:
    """The value of whole-number arithmetic, or a hole."""
    soft = ""
    tokens: list[str] = []
    at = 0
    while at < len(expression) and len(tokens) < 200:
        match = _ARITHMETIC.match(expression, at)
        if match is None:
            return "" if not expression.strip() else HOLE if expression[at:].strip() else _value(tokens, soft)
        at = match.end()
        if match[2]:
            text = variables.get(match[2], HOLE)
            soft = soft or (SOFT if SOFT in text else "")
            number = text.replace(SOFT, "").strip()
            if not (number.isascii() and number.isdecimal() and len(number) <= 18):
                return HOLE
            tokens.append(number)
        else:
            tokens.append(match[1] or match[3])
    return _value(tokens, soft)


def _value(tokens: list[str], soft: str) -> str:
    try:
        value, rest = _sum(tokens, 0, 0)
    except (ValueError, ZeroDivisionError, IndexError):
        return HOLE
    return f"{soft}{value}" if rest == len(tokens) and abs(value) < 10**18 else HOLE


def _sum(tokens: list[str], at: int, depth: int) -> tuple[int, int]:
    value, at = _product(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "+-":
        other, after = _product(tokens, at + 1, depth)
        value = value + other if tokens[at] == "+" else value - other
        at = after
    return value, at


def _product(tokens: list[str], at: int, depth: int) -> tuple[int, int]:
    value, at = _factor(tokens, at, depth)
    while at < len(tokens) and tokens[at] in {"*", "/", "%"}:
        other, after = _factor(tokens, at + 1, depth)
        if tokens[at] == "*":
            value *= other
        elif tokens[at] == "/":
            # The shell's division goes towards zero.
            value = abs(value) // abs(other) * (1 if (value < 0) == (other < 0) else -1)
        else:
            value = abs(value) % abs(other) * (1 if value >= 0 else -1)
        if abs(value) >= 10**18:
            raise ValueError("too large")
        at = after
    return value, at


def _factor(tokens: list[str], at: int, depth: int) -> tuple[int, int]:
    if depth > 50:
        raise ValueError("nested too deep")
    first = tokens[at]
    if first == "(":
        value, at = _sum(tokens, at + 1, depth + 1)
        if tokens[at] != ")":
            raise ValueError("a bracket is open")
        return value, at + 1
    if first == "-":
        value, at = _factor(tokens, at + 1, depth + 1)
        return -value, at
    return int(first), at + 1
