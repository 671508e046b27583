"""TOML for Python before 3.11, which has no parser: as much of it as config files use.

Tables, strings, numbers, booleans and arrays on one line. What else TOML has is refused, with
its line, and never misread.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Tuple

_KEY = r"[A-Za-z0-9_-]+"
_HEADER = re.compile(rf"\[\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]")
_PAIR = re.compile(rf"({_KEY}(?:\s*\.\s*{_KEY})*)\s*=\s*")
_STRING = re.compile(r'"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\["\\tnr])*)"(?!")')
_LITERAL = re.compile(r"'([^'\x00-\x08\x0a-\x1f\x7f]*)'(?!')")
_NUMBER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)(?:\.[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9]+)?")
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}


class TomlError(ValueError):
    """Text that is no TOML, or TOML beyond what this reads."""


def loads(text: str) -> Dict[str, Any]:
    """The root table. Raises :class:`TomlError`, naming the line."""
    root: Dict[str, Any] = {}
    table = root
    headers = set()
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        line = line.strip(" \t")
        try:
            header = _HEADER.match(line)
            if header:
                _end(line, header.end())
                path = tuple(_parts(header.group(1)))
                if path in headers:
                    raise TomlError(f"table [{'.'.join(path)}] twice")
                headers.add(path)
                table = _descend(root, list(path))
            elif line and not line.startswith("#"):
                _pair(table, line)
        except TomlError as error:
            raise TomlError(f"line {number}: {error}") from None
    return root


def _pair(table: Dict[str, Any], line: str) -> None:
    match = _PAIR.match(line)
    if not match:
        raise TomlError("neither a [table] nor a `key = value`")
    *path, key = _parts(match.group(1))
    value, end = _value(line, match.end())
    _end(line, end)
    table = _descend(table, path)
    if key in table:
        raise TomlError(f"key `{key}` twice")
    table[key] = value


def _parts(path: str) -> List[str]:
    return [part.strip(" \t") for part in path.split(".")]


def _descend(table: Dict[str, Any], path: List[str]) -> Dict[str, Any]:
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise TomlError(f"`{part}` is a value and a table")
    return table


def _value(line: str, at: int) -> Tuple[Any, int]:
    string, literal = _STRING.match(line, at), _LITERAL.match(line, at)
    if string:
        return re.sub(r"\\.", lambda found: _ESCAPES[found.group()], string.group(1)), string.end()
    if literal:
        return literal.group(1), literal.end()
    for word, value in (("true", True), ("false", False)):
        if line.startswith(word, at):
            return value, at + len(word)
    if line.startswith("[", at):
        return _array(line, at + 1)
    number = _NUMBER.match(line, at)
    if not number:
        raise TomlError("a value that is no string, number, boolean or array on one line")
    digits = number.group().replace("_", "")
    return (float if re.search("[.eE]", digits) else int)(digits), number.end()


def _array(line: str, at: int) -> Tuple[List[Any], int]:
    items: List[Any] = []
    while True:
        at = _blank(line, at)
        if line.startswith("]", at):
            return items, at + 1
        value, at = _value(line, at)
        items.append(value)
        at = _blank(line, at)
        if line.startswith(",", at):
            at += 1
        elif not line.startswith("]", at):
            raise TomlError("an array that does not end on its line")


def _blank(line: str, at: int) -> int:
    return len(line) - len(line[at:].lstrip(" \t"))


def _end(line: str, at: int) -> None:
    rest = line[at:].lstrip(" \t")
    if rest and not rest.startswith("#"):
        raise TomlError(f"`{rest}` after the value")
