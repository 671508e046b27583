"""A reader of the TOML that config files use, for Python 3.9 and 3.10, which have no parser.

It reads tables, inline tables, arrays, strings, numbers and booleans. It refuses anything else of
TOML with its line number, and never misreads it.
"""

from __future__ import annotations

import re
from re import Pattern
from typing import Any

_KEY = r"[A-Za-z0-9_-]+"
_PATH = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"\[[ \t]*({_PATH})[ \t]*\]")
_PAIR = re.compile(rf"({_PATH})[ \t]*=[ \t]*")
_STRING = re.compile(r'"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\["\\tnr])*)"(?!")')
_LITERAL = re.compile(r"'([^'\x00-\x08\x0a-\x1f\x7f]*)'(?!')")
_NUMBER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)(?:\.[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9]+)?")
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}
_BLANK = re.compile(r"[ \t]*")
_COMMENT = re.compile(r"[ \t]*(?:#[^\n]*)?")
#: Spaces, line ends and comments.
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")


class TomlError(ValueError):
    """The text is no TOML, or uses a part of TOML that this reader lacks."""


class _Inline(dict[str, Any]):
    """An inline table. Nothing may be added to it after its closing brace."""


def loads(text: str) -> dict[str, Any]:
    """Returns the root table. Raises ``TomlError`` with the number of the line."""
    text = text.replace("\r\n", "\n")
    root: dict[str, Any] = {}
    table = root
    headers = set()
    at = _after(_GAP, text, 0)
    while at < len(text):
        try:
            header = _HEADER.match(text, at)
            if header:
                path = tuple(_parts(header.group(1)))
                if path in headers:
                    raise TomlError(f"table [{'.'.join(path)}] twice")
                headers.add(path)
                table, end = _descend(root, list(path)), header.end()
            else:
                end = _pair(table, text, at)
            at = _after(_GAP, text, _end(text, end))
        except TomlError as error:
            line = text.count("\n", 0, at) + 1
            raise TomlError(f"line {line}: {error}") from None
    return root


def _pair(table: dict[str, Any], text: str, at: int) -> int:
    match = _PAIR.match(text, at)
    if not match:
        raise TomlError("neither a [table] nor a `key = value`")
    *path, key = _parts(match.group(1))
    value, end = _value(text, match.end())
    table = _descend(table, path)
    if key in table:
        raise TomlError(f"key `{key}` twice")
    table[key] = value
    return end


def _parts(path: str) -> list[str]:
    return [part.strip(" \t") for part in path.split(".")]


def _descend(table: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict) or isinstance(table, _Inline):
            raise TomlError(f"`{part}` is a value and a table")
    return table


def _value(text: str, at: int) -> tuple[Any, int]:
    string, literal = _STRING.match(text, at), _LITERAL.match(text, at)
    if string:
        return re.sub(r"\\.", lambda found: _ESCAPES[found.group()], string.group(1)), string.end()
    if literal:
        return literal.group(1), literal.end()
    for word, value in (("true", True), ("false", False)):
        if text.startswith(word, at):
            return value, at + len(word)
    if text.startswith("[", at):
        return _array(text, at + 1)
    if text.startswith("{", at):
        return _inline(text, at + 1)
    number = _NUMBER.match(text, at)
    if not number:
        raise TomlError("a value that is no string, number, boolean, array or inline table")
    digits = number.group().replace("_", "")
    return (float if re.search("[.eE]", digits) else int)(digits), number.end()


def _array(text: str, at: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while True:
        at = _after(_GAP, text, at)
        if text.startswith("]", at):
            return items, at + 1
        value, at = _value(text, at)
        items.append(value)
        at = _after(_GAP, text, at)
        if text.startswith(",", at):
            at += 1
        elif not text.startswith("]", at):
            raise TomlError("an array that does not end")


def _inline(text: str, at: int) -> tuple[_Inline, int]:
    """Reads an inline table: on one line, and without a trailing comma."""
    table: dict[str, Any] = {}
    at = _after(_BLANK, text, at)
    if text.startswith("}", at):
        return _Inline(), at + 1
    while True:
        at = _after(_BLANK, text, _pair(table, text, at))
        if text.startswith("}", at):
            return _Inline(table), at + 1
        if not text.startswith(",", at):
            raise TomlError("an inline table that does not end on its line")
        at = _after(_BLANK, text, at + 1)


def _after(what: Pattern[str], text: str, at: int) -> int:
    """Returns the position behind a match at ``at``, or ``at`` without one."""
    found = what.match(text, at)
    return found.end() if found else at


def _end(text: str, at: int) -> int:
    """Returns the position of the line's end. Only a comment may come before it."""
    at = _after(_COMMENT, text, at)
    rest = text[at:].split("\n", 1)[0]
    if rest:
        raise TomlError(f"`{rest}` after the value")
    return at
