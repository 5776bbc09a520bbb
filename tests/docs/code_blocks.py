"""Tests the code blocks of a page, from the first to the last, in one namespace.

How a block is tested follows from its language:

``python``
    is run. A block that begins with a comment that is a path, such as ``# shop/tasks.py``, is
    written to that file and imported.
``pycon``
    is a session: what it prints is compared.
``console``, ``bash``
    each command must exist, with these options; see `tests/docs/shell_commands.py`.
``toml``, ``json``
    is parsed.
``text``
    is output, and no code.
``{literalinclude}``
    is part of an example, which has tests of its own.

A block that cannot be tested follows a comment with the reason:
``<!-- skip: next "needs an account of the API" -->``. What a page leaves to its reader, such as a
function that its tasks call, is in an invisible block:
``<!-- invisible-code-block: python`` ... ``-->``.

"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from doctest import NORMALIZE_WHITESPACE
from pathlib import Path
from unittest import SkipTest

from sybil import Document, Example
from sybil.evaluators.doctest import DocTestEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer
from sybil.parsers.myst import CodeBlockParser, SkipParser
from sybil.typing import Parser

from tests.docs import shell_commands

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SKIP = re.compile(r'<!--+ skip: next "[^"]+" --+>$')
_FILE = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
_REDIS = re.compile(r"(?:redis|valkey)://(?:localhost|redis|limits)(?::\d+)?(?:/\d+)?")

#: Blocks of these languages are no code of the reader.
_OUTPUT = frozenset(
    {"text", "{toctree}", "{eval-rst}", "{include}", "{literalinclude}", "{figure}", "mermaid"}
)


class Page:
    """A page of the documentation.

    Args:
        path: of the page.
        url: of the server that code of the page connects to.
        directory: where its files are written.
    """

    def __init__(self, path: Path, url: str, directory: Path) -> None:
        self._directory = directory
        text = _REDIS.sub(url, path.read_text(encoding="utf-8"))
        self._document = Document(text.replace("amqp://", "memory://"), str(path))
        evaluators: dict[str, Callable[[Example], None]] = {
            "python": self._run,
            "pycon": self._run_session,
            "console": self._check_console,
            "bash": self._check_console,
            "toml": self._parse_toml,
            "json": self._parse_json,
        }
        parsers: list[Parser] = [
            CodeBlockParser(language, run) for language, run in evaluators.items()
        ]
        parse_skips: Parser = SkipParser()
        for parse in (parse_skips, *parsers):
            for region in parse(self._document):
                self._document.add(region)
        self._languages = frozenset({*evaluators, *_OUTPUT})

    def untested(self) -> list[str]:
        """Return the lines of blocks without a language, or of one that has no test or reason."""
        found = []
        for block in FencedCodeBlockLexer("[^\n]*")(self._document):
            language = block.lexemes["language"].strip().partition(" ")[0]
            before = self._document.text[: block.start].rstrip()
            if language not in self._languages and not _SKIP.search(before):
                found.append(
                    f"{self._document.line_column(block.start)}: {language or 'no language'}"
                )
        return found

    def test(self) -> None:
        """Test each block that is not skipped."""
        for example in self._document.examples():
            with suppress(SkipTest):
                example.evaluate()

    def _run(self, example: Example) -> None:
        source, namespace = str(example.parsed), example.namespace
        if found := _FILE.match(source):
            self._import(found[1], source, namespace)
            return
        # Lines are counted as on the page.
        source = "\n" * (example.line + example.parsed.line_offset) + source
        code = compile(
            source, example.path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        result = eval(code, namespace)  # noqa: S307  # our own pages
        if inspect.iscoroutine(result):
            asyncio.run(result)

    def _import(self, name: str, source: str, namespace: dict[str, object]) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        if path.suffix == ".py":
            module = ".".join(path.relative_to(self._directory).with_suffix("").parts)
            sys.modules.pop(module, None)
            importlib.invalidate_caches()
            namespace.update(vars(importlib.import_module(module)))

    def _run_session(self, example: Example) -> None:
        evaluator = DocTestEvaluator(NORMALIZE_WHITESPACE)
        for region in DocTestStringParser(evaluator)(str(example.parsed), example.path):
            line = example.line + region.parsed.lineno
            # It returns the difference, and raises nothing.
            difference = evaluator(Example(example.document, line, 0, region, example.namespace))
            assert not difference, difference

    def _check_console(self, example: Example) -> None:
        prompt = example.region.lexemes["arguments"] == "console"
        for words in shell_commands.commands(str(example.parsed), prompt=prompt):
            shell_commands.check(words)

    def _parse_toml(self, example: Example) -> None:
        source = str(example.parsed)
        tomllib.loads(source)
        if found := _FILE.match(source):
            (self._directory / found[1]).write_text(source, encoding="utf-8")

    def _parse_json(self, example: Example) -> None:
        json.loads(str(example.parsed))
