"""Whether a step of a task's way costs more than in another checkout, such as the last release.

``--against PATH`` names the checkout. Each round runs ``python -m benchmarks steps`` of both, one
after the other, each on a server of its own. The figures are the processor time of the server for
each step, as a share of what it is there: medians over the rounds. A step that the other checkout
does not have is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import ROOT

#: The most that a step may cost, as a share of what it costs in the other checkout.
MOST = 1.1


def run(options: Options) -> Result:
    """Run the steps of both checkouts in turn."""
    if options.against is None:
        raise SystemExit("regression needs --against PATH: another checkout of this repository")
    rounds: list[dict[str, float]] = []
    for number in range(options.pick(5, 1)):
        options.say(f"regression: round {number + 1}")
        ours, theirs = (_measure(root, quick=options.quick) for root in (ROOT, options.against))
        rounds.append({name: us / theirs[name] for name, us in ours.items() if theirs.get(name)})
    figures = [
        Figure(name, "", median(values), 1.0, at_most=MOST, rounds=values)
        for name, values in ((name, [one[name] for one in rounds]) for name in rounds[0])
    ]
    return Result(name="regression", theirs=f"the checkout {options.against}", figures=figures)


def _measure(root: Path, *, quick: bool) -> dict[str, float]:
    """Return the processor time (us) of each step in a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks", "steps", "--json", folder]
        command += ["--quick"] if quick else []
        subprocess.run(command, cwd=root, check=False, capture_output=True)
        figures = json.loads(Path(folder, "steps.json").read_text(encoding="utf-8"))["figures"]
    return {one["name"]: one["value"] for one in figures if "processor time" in one["name"]}
