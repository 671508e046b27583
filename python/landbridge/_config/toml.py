"""A reader of the TOML that config files use, for Python 3.9 and 3.10, which have no parser.

It reads tables, inline tables, arrays, strings, numbers and booleans. It refuses anything else of
TOML with its line number, and never misreads it.
"""

from __future__ import annotations

import re
from re import Pattern
from typing import Any

#: Pattern of a TOML key without quotes. TOML keys in quotes are refused.
_BARE_KEY = r"[A-Za-z0-9_-]+"
#: Pattern of TOML keys with dots between them, such as ``gateway.east-0``.
_KEY_PATH = rf"{_BARE_KEY}(?:[ \t]*\.[ \t]*{_BARE_KEY})*"
#: Pattern of the header of a TOML table, such as ``[gateway.east-0]``. Its group is the path of
#: keys.
_TABLE_HEADER = re.compile(rf"\[[ \t]*({_KEY_PATH})[ \t]*\]")
#: Pattern of the key of a TOML pair and its equals sign. Its group is the path of keys.
_KEY_AND_EQUALS = re.compile(rf"({_KEY_PATH})[ \t]*=[ \t]*")
#: Pattern of a TOML string in double quotes on one line. Its group is the text with escapes.
_BASIC_STRING = re.compile(r'"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\["\\tnr])*)"(?!")')
#: Pattern of a TOML string in single quotes on one line, which has no escapes. Its group is the
#: text.
_LITERAL_STRING = re.compile(r"'([^'\x00-\x08\x0a-\x1f\x7f]*)'(?!')")
#: Pattern of a decimal integer or float of TOML, with underscores between digits. Dates, hex and
#: ``inf`` are refused.
_NUMBER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)(?:\.[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9]+)?")
#: The character for each escape that a TOML string in double quotes may have.
_STRING_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}
#: Pattern of spaces and tabs, perhaps none.
_SPACES = re.compile(r"[ \t]*")
#: Pattern of spaces and tabs, and a comment up to the end of its line, perhaps neither.
_SPACES_AND_COMMENT = re.compile(r"[ \t]*(?:#[^\n]*)?")
#: Pattern of spaces, tabs, comments and line ends, perhaps none.
_SPACES_COMMENTS_AND_LINE_ENDS = re.compile(r"(?:[ \t\n]|#[^\n]*)*")


class TomlError(ValueError):
    """The text is no TOML, or uses a part of TOML that this reader lacks."""


class _InlineTable(dict[str, Any]):
    """An inline table. Nothing may be added to it after its closing brace."""


def loads(text: str) -> dict[str, Any]:
    """Returns the root table of a TOML text. Raises ``TomlError`` with the number of the line."""
    text = text.replace("\r\n", "\n")
    root: dict[str, Any] = {}
    table = root
    headers = set()
    at = _skip_match(_SPACES_COMMENTS_AND_LINE_ENDS, text, 0)
    while at < len(text):
        try:
            header = _TABLE_HEADER.match(text, at)
            if header:
                path = tuple(_split_toml_key_path(header.group(1)))
                if path in headers:
                    raise TomlError(f"table [{'.'.join(path)}] twice")
                headers.add(path)
                table, end = _open_toml_table(root, list(path)), header.end()
            else:
                end = _parse_toml_pair(table, text, at)
            at = _skip_match(_SPACES_COMMENTS_AND_LINE_ENDS, text, _skip_to_line_end(text, end))
        except TomlError as error:
            line = text.count("\n", 0, at) + 1
            raise TomlError(f"line {line}: {error}") from None
    return root


def _parse_toml_pair(table: dict[str, Any], text: str, at: int) -> int:
    """Adds the TOML pair ``key = value`` at position ``at`` to a table. Returns the position behind
    the value."""
    match = _KEY_AND_EQUALS.match(text, at)
    if not match:
        raise TomlError("neither a [table] nor a `key = value`")
    *path, key = _split_toml_key_path(match.group(1))
    value, end = _parse_toml_value(text, match.end())
    table = _open_toml_table(table, path)
    if key in table:
        raise TomlError(f"key `{key}` twice")
    table[key] = value
    return end


def _split_toml_key_path(path: str) -> list[str]:
    """Returns the parts of a dotted TOML key."""
    return [part.strip(" \t") for part in path.split(".")]


def _open_toml_table(table: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Returns the table at a path of keys below ``table``, and makes the tables that are
    missing."""
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict) or isinstance(table, _InlineTable):
            raise TomlError(f"`{part}` is a value and a table")
    return table


def _parse_toml_value(text: str, at: int) -> tuple[Any, int]:
    """Returns the TOML value at position ``at`` of the text, and the position behind the value."""
    string, literal = _BASIC_STRING.match(text, at), _LITERAL_STRING.match(text, at)
    if string:
        return re.sub(
            r"\\.", lambda found: _STRING_ESCAPES[found.group()], string.group(1)
        ), string.end()
    if literal:
        return literal.group(1), literal.end()
    for word, value in (("true", True), ("false", False)):
        if text.startswith(word, at):
            return value, at + len(word)
    if text.startswith("[", at):
        return _parse_toml_array(text, at + 1)
    if text.startswith("{", at):
        return _parse_inline_table(text, at + 1)
    number = _NUMBER.match(text, at)
    if not number:
        raise TomlError("a value that is no string, number, boolean, array or inline table")
    digits = number.group().replace("_", "")
    return (float if re.search("[.eE]", digits) else int)(digits), number.end()


def _parse_toml_array(text: str, at: int) -> tuple[list[Any], int]:
    """Returns the TOML array whose bracket is before position ``at``, and the position behind the
    array."""
    items: list[Any] = []
    while True:
        at = _skip_match(_SPACES_COMMENTS_AND_LINE_ENDS, text, at)
        if text.startswith("]", at):
            return items, at + 1
        value, at = _parse_toml_value(text, at)
        items.append(value)
        at = _skip_match(_SPACES_COMMENTS_AND_LINE_ENDS, text, at)
        if text.startswith(",", at):
            at += 1
        elif not text.startswith("]", at):
            raise TomlError("an array that does not end")


def _parse_inline_table(text: str, at: int) -> tuple[_InlineTable, int]:
    """Returns the TOML inline table whose brace is before position ``at``, and the position behind
    the table. The table is on one line and has no trailing comma."""
    table: dict[str, Any] = {}
    at = _skip_match(_SPACES, text, at)
    if text.startswith("}", at):
        return _InlineTable(), at + 1
    while True:
        at = _skip_match(_SPACES, text, _parse_toml_pair(table, text, at))
        if text.startswith("}", at):
            return _InlineTable(table), at + 1
        if not text.startswith(",", at):
            raise TomlError("an inline table that does not end on its line")
        at = _skip_match(_SPACES, text, at + 1)


def _skip_match(pattern: Pattern[str], text: str, at: int) -> int:
    """Returns the position of the text behind a match of ``pattern`` at ``at``, or ``at`` without a
    match."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _skip_to_line_end(text: str, at: int) -> int:
    """Returns the position of the end of a TOML line, before which only a comment may follow
    ``at``."""
    at = _skip_match(_SPACES_AND_COMMENT, text, at)
    rest = text[at:].split("\n", 1)[0]
    if rest:
        raise TomlError(f"`{rest}` after the value")
    return at
