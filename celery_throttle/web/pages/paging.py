"""Tables that are shown page by page, by the argument ``page``, from 1."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from flask import request, url_for

_MAX_NUMBER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a table.

    Attributes:
        total: the rows of the table.
        first: the rows before this page.
        size: the rows of a page.
    """

    total: int
    first: int
    size: int

    @property
    def number(self) -> int:
        """The number of the page, from 1."""
        return self.first // self.size + 1

    @property
    def last(self) -> int:
        """The number of the last page."""
        return max(1, ceil(self.total / self.size))

    @property
    def end(self) -> int:
        """The rows up to the end of this page."""
        return min(self.total, self.first + self.size)

    @property
    def previous_url(self) -> str | None:
        """The URL of the page before; None on the first page."""
        return _url(min(self.number, self.last + 1) - 1) if self.number > 1 else None

    @property
    def next_url(self) -> str | None:
        """The URL of the page after; None on the last page."""
        return _url(self.number + 1) if self.number < self.last else None


def read_page(total: int, size: int) -> Page:
    """Return the page of the argument; the last page if there are fewer."""
    page = Page(total, 0, size)
    return Page(total, (min(number_argument("page"), page.last) - 1) * size, size)


def number_argument(name: str) -> int:
    """Return the number of an argument, from 1 to a billion; 1 without a number."""
    return min(max(1, request.args.get(name, 1, type=int)), _MAX_NUMBER)


def _url(number: int) -> str:
    arguments = {**request.args.to_dict(), **(request.view_args or {}), "page": number}
    return url_for(request.endpoint or "limits", **arguments)
