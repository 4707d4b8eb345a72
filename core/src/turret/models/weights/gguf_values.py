"""The typed values of a GGUF header, read one after the other and never beyond the end of the file."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from turret.spi import CheckpointError

from .mapped_file import MappedFile

NUMBERS = {0: "B", 1: "b", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
"""The NumPy dtype of each numeric type."""

BOOL, STRING, ARRAY = 7, 8, 9
LEAST_BYTES = {BOOL: 1, STRING: 8, ARRAY: 12} | {
    kind: 1 if dtype in "Bb" else int(dtype[-1]) for kind, dtype in NUMBERS.items()
}
"""What a value of each type takes at least: it bounds how many of them the rest of a file can hold."""

MOST_NESTED = 4
MOST_NAME_BYTES = 65_535


class HeaderReader:
    """A place in a GGUF header that moves on with each value.

    Every method raises CheckpointError, naming the file and `what` was being read, for bytes that are no such value.
    """

    def __init__(self, file: MappedFile) -> None:
        self._file, self._data = file, file.bytes()
        self.place = 0

    def refuse(self, message: str) -> NoReturn:
        """Raises: CheckpointError with the message behind the name of the file."""
        raise CheckpointError(f"{self._file.path}: {message}; the file is damaged, fetch it again")

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes."""
        begin = self._pass(count, what)
        return self._data[begin : self.place]

    def unsigned(self, width: int, what: str) -> int:
        """The next `width` bytes as a number."""
        return int.from_bytes(self.take(width, what), "little")

    def count(self, least: int, what: str) -> int:
        """A number of things that take `least` bytes each, so that no more is promised than can follow."""
        number = self.unsigned(8, what)
        if number * least > self._file.size - self.place:
            self.refuse(f"{what} is {number}, more than the {self._file.size - self.place} bytes left can hold")
        return number

    def name(self, what: str) -> str:
        """A text that is not empty and not absurdly long."""
        text = self.text(what)
        if not text or len(text) > MOST_NAME_BYTES:
            self.refuse(f"{what} has {len(text)} characters; wanted 1 to {MOST_NAME_BYTES}")
        return text

    def text(self, what: str) -> str:
        """A text with its length before it."""
        raw = self.take(self.count(1, f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.refuse(f"{what} is not UTF-8 ({error.reason})")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """A value of one of the 13 types."""
        if kind == STRING:
            return self.text(what)
        if kind == BOOL:
            return self._booleans(1, what)[0]
        if kind in NUMBERS:
            return self._numbers(kind, 1, what)[0]
        if kind != ARRAY:
            self.refuse(f"{what} is of the type {kind}; wanted 0 to {max(NUMBERS)}")
        if depth == MOST_NESTED:
            self.refuse(f"{what} is an array inside {MOST_NESTED} others")
        inner = self.unsigned(4, f"the type of {what}")
        if inner not in LEAST_BYTES:
            self.refuse(f"{what} is an array of the type {inner}; wanted 0 to {max(NUMBERS)}")
        count = self.count(LEAST_BYTES[inner], f"the length of {what}")
        if inner == STRING:
            return self._texts(count, what)
        if inner == BOOL:
            return self._booleans(count, what)
        if inner in NUMBERS:
            return self._numbers(inner, count, what)
        return [self.value(ARRAY, what, depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int, what: str) -> list[Any]:
        begin = self._pass(count * LEAST_BYTES[kind], what)
        values: list[Any] = self._file.array(begin, count, NUMBERS[kind]).tolist()
        return values

    def _booleans(self, count: int, what: str) -> list[bool]:
        raw = self.take(count, what)
        if raw.strip(b"\0\1"):
            self.refuse(f"{what} is a boolean of {max(raw)}; wanted 0 or 1")
        return [byte == 1 for byte in raw]

    def _pass(self, count: int, what: str) -> int:
        """Moves behind the next `count` bytes; returns where they begin."""
        begin, left = self.place, self._file.size - self.place
        if count > left:
            self.refuse(f"{what} takes {count} bytes where {left} are left")
        self.place += count
        return begin

    def _texts(self, count: int, what: str) -> list[str]:
        """Many texts: vocabularies have a hundred thousand, so the checks are written out in the loop."""
        data, size, place = self._data, self._file.size, self.place
        length_at = struct.Struct("<Q").unpack_from
        texts = []
        try:
            for _ in range(count):
                begin = place + 8
                place = begin + length_at(data, place)[0]
                if place > size:
                    self.refuse(f"a text of {what} ends at byte {place} of {size}")
                texts.append(str(data[begin:place], "utf-8"))
        except struct.error:
            self.refuse(f"{what} ends after {len(texts)} of {count} texts")
        except UnicodeDecodeError as error:
            self.refuse(f"text {len(texts)} of {what} is not UTF-8 ({error.reason})")
        self.place = place
        return texts
