"""Tables, questions, JSON and live screens on the terminal, and its Ctrl-C."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import click

from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.observe.status_text import to_json

#: Between two columns.
_GAP = "  "

#: The least width to which a column of text is cut.
_MIN_TEXT_WIDTH = 8

# The other screen of the terminal, without a cursor, where long lines are cut; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"

# To the first column of the first line; deletes the rest of a line, or of the screen.
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, and lines of text below it."""

    cells: Sequence[str]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of text. Those whose heading begins with ">" are aligned to the right."""

    head: Sequence[str]
    rows: Sequence[Row]
    flexible: int = 0  #: the column that is cut if the terminal is too narrow

    def lines(self, width: int | None) -> Iterator[str]:
        """Yield the lines; ``width``: columns of the terminal, None for any number."""
        titles = [title.removeprefix(">") for title in self.head]
        rows = [[*map(printable, row.cells)] for row in self.rows]
        columns = zip(titles, *rows, strict=True)
        widths = [max(map(len, column)) for column in columns]
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - (width or sys.maxsize)
        if excess > 0:
            least = min(widths[self.flexible], _MIN_TEXT_WIDTH)
            widths[self.flexible] = max(least, widths[self.flexible] - excess)
        yield click.style(self._line(titles, widths), bold=True)
        for cells, row in zip(rows, self.rows, strict=True):
            yield self._line(cells, widths)
            for note in row.notes:
                yield click.style(f"{_GAP}{printable(note)}", dim=True)

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        aligned = []
        for title, cell, width in zip(self.head, cells, widths, strict=True):
            text = cell if len(cell) <= width else f"{cell[: width - 1]}…"
            aligned.append(text.rjust(width) if title.startswith(">") else text.ljust(width))
        return _GAP.join(aligned).rstrip()


def printable(text: str) -> str:
    """Escape the characters of a line that would move the cursor, or change the terminal."""
    if text.isprintable():
        return text
    escaped = (one.encode("unicode_escape").decode() for one in text)
    return "".join(a if a.isprintable() else b for a, b in zip(text, escaped, strict=True))


def terminal_width() -> int | None:
    """Return the width of the terminal; None if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def echo_table(table: Table) -> None:
    """Print a table."""
    for line in table.lines(terminal_width()):
        click.echo(line)


def echo_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, a pair in each line. A value may have several lines."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        first, *more = map(printable, value.splitlines() or [""])
        click.echo(f"{_GAP}{click.style(name.ljust(width), dim=True)}{_GAP}{first}")
        for line in more:
            click.echo(f"{_GAP}{' ' * width}{_GAP}{line}")


def echo_json(value: Any) -> None:
    """Print a value as JSON, in ASCII: it is valid whatever the encoding of standard output."""
    click.echo(json.dumps(to_json(value), indent=2))


def echo_result(value: Any, text: str, *, as_json: bool) -> None:
    """Print what a command has done: a value as JSON, or text."""
    if as_json:
        echo_json(value)
    else:
        click.echo(text)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change with consequences, on standard error; without a terminal, refuse.

    Raises:
        CommandError: the answer is no, or there is nobody to ask.
    """
    if yes:
        return
    if not _can_ask():
        raise CommandError("this needs an answer, and there is no terminal to ask; give --yes")
    if not click.confirm(question, err=True):
        raise CommandError("nothing was changed")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Context: a progress bar on standard error; call it with what is done, and the total.

    Nothing is shown if that is no terminal, where click would print the label alone.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def update(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield update


@contextmanager
def live_screen() -> Iterator[Callable[[Sequence[str]], None]]:
    """Context: another screen of the terminal; call it with lines to draw them on the whole."""

    def draw(lines: Sequence[str]) -> None:
        height = shutil.get_terminal_size().lines
        screen = "\n".join(f"{line}{_END_LINE}" for line in lines[:height])
        click.echo(f"{_HOME}{screen}{_END_SCREEN}", nl=False)

    click.echo(_ENTER, nl=False)
    try:
        yield draw
    finally:
        click.echo(_LEAVE, nl=False)


@contextmanager
def interruption(*signals: signal.Signals) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C, or other of these signals, sets.

    Another one has its usual effect, such as KeyboardInterrupt. Python loses a KeyboardInterrupt
    that is raised where nobody catches it, such as in a finalizer.
    """
    interrupted = threading.Event()
    handlers = {number: signal.getsignal(number) for number in signals or (signal.SIGINT,)}

    def set_once(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, handlers[signal.Signals(number)])
        interrupted.set()

    for number in handlers:
        signal.signal(number, set_once)
    try:
        yield interrupted
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
