"""The body of an answer, watched while it passes on to its reader.

A body is one JSON document, or a stream of events (``text/event-stream``) with a JSON document
each. It is never held back: what a profile reads from it is known at its end.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from celery_throttle.clients.answer import parse_json
from celery_throttle.clients.profiles.profile import Units

#: Longer documents, and longer events, are not read.
MAX_DOCUMENT_BYTES = 4_000_000

#: The encodings that a watched body may have; requests ask for no other.
ENCODINGS = "gzip, deflate"

_EVENT_STREAM = "text/event-stream"


class WatchedBody:
    """Reads the usage from a body, piece by piece.

    Args:
        headers: The fields of the answer, by their names in lower case.
        usage: Returns the units that one document tells; see :class:`.profile.Profile`.

    Attributes:
        document: What the JSON of the body stands for; None until its end, or if it is none.
    """

    def __init__(self, headers: Mapping[str, str], usage: Callable[[Any], Units]) -> None:
        self.document: Any = None
        self._usage = usage
        self._units: dict[str, float] = {}
        self._is_stream = _EVENT_STREAM in headers.get("content-type", "")
        self._decode = _decoder(headers.get("content-encoding", ""))
        self._bytes = bytearray()
        self._is_readable = True

    def feed(self, piece: bytes, *, is_decoded: bool = False) -> None:
        """Take the next piece of the body: as it came, or decoded."""
        if not self._is_readable:
            return
        try:
            self._bytes += piece if is_decoded else self._decode(piece)
        except zlib.error:
            self._is_readable = False
            return
        if self._is_stream:
            *lines, self._bytes = self._bytes.split(b"\n")
            for line in lines:
                self._read_line(line)
        if len(self._bytes) > MAX_DOCUMENT_BYTES:
            self._is_readable = False
            self._bytes.clear()

    def end(self) -> Units:
        """The body has ended, or its reader wants no more. Return the units that it told."""
        if self._is_readable and self._is_stream:
            self._read_line(self._bytes)
        elif self._is_readable and self._bytes:
            self.document = parse_json(self._bytes)
            self._read(self.document)
        return self._units

    def read(self, document: Any) -> None:
        """Read one document; of several, the last that tells a quantity counts."""
        self._units.update(self._usage(document))

    def _read_line(self, line: bytes | bytearray) -> None:
        if line.startswith(b"data:") and b"{" in line:
            self._read(parse_json(line[len(b"data:") :]))

    def _read(self, document: Any) -> None:
        for each in document if isinstance(document, list) else [document]:  # Google's streams
            if isinstance(each, Mapping):
                self.read(each)


def _decoder(encoding: str) -> Callable[[bytes], bytes]:
    """Return a function that decodes a body piece by piece."""
    if not encoding.strip() or encoding.strip() == "identity":
        return bytes
    # 32 more: gzip or zlib, by the first bytes.
    return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress
