"""``celery-throttle simulate``: the command and its options."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from celery_throttle.cli.shared.params import DurationType, LimitType
from celery_throttle.cli.simulation import SimulationError, generated, memory, traces, views
from celery_throttle.cli.simulation.run import Mode, run_trace
from celery_throttle.errors import require_extra
from celery_throttle.limits.limit import Limit

_PLOTS = (".svg", ".png")


def _traces() -> str:
    """Return the forms of a trace, for the help."""
    rows = [(one.form, one.description) for one in generated.GENERATORS.values()]
    rows += [
        ("FILE", "CSV file; each row has a time and, optionally, a cost"),
        ("-", "the same, from standard input"),
    ]
    width = max(len(form) for form, _ in rows)
    return "\n".join(f"  {form:{width}}  {about}" for form, about in rows)


_HELP = f"""Play a trace of requests against limits.

No server is needed. Each limit decides over the whole trace by itself, with the algorithms that the
server runs. The table shows, for each limit, the number of admitted and refused requests, the most
units in any window of one period, the waits of the admitted requests, and the memory of one key.

TRACE is one of:

\b
{_traces()}

Every trace except for a file takes an option such as cost=2, the cost of each request. A duration
or period is a number and a unit: us, ms, s, m, h, d, w or month. A time is a number of seconds
(61.5), a time of day (12:00:05) or a date and time (2026-07-01T09:30:00Z, in UTC if it has no
zone). A file may begin with a row of column names. Blank lines and lines that begin with # are
ignored. A sliding log of thousands of entries takes some milliseconds per request.

\b
  celery-throttle simulate edges:100@60s,300s \\
      --limit "100/m using fixed-window" --limit "100/m using sliding-log"
"""


@click.command(help=_HELP)
@click.argument("trace")
@click.option(
    "--limit",
    "limits",
    type=LimitType(),
    multiple=True,
    required=True,
    help="Limit, such as '10/s burst 5' or '10 at once'. Repeat it to compare limits.",
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.DROP.value,
    show_default=True,
    help="drop: a refused request is lost. wait: it waits in a line, as tasks do.",
)
@click.option(
    "--duration",
    type=DurationType(),
    default=0,
    help="Time for which each request holds its slot, such as 0.5s; for 'at once' limits.",
)
@click.option(
    "--each", is_flag=True, help="Show the decision for each request instead of the summary."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--memory/--no-memory",
    "with_memory",
    default=True,
    help="Measure the memory of one key, if a private server can be started.  [default: memory]",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the admissions over time to this file: .svg or .png.",
)
def simulate(
    trace: str,
    limits: tuple[Limit, ...],
    mode: str,
    duration: int,
    *,
    each: bool,
    as_json: bool,
    with_memory: bool,
    plot: Path | None,
) -> None:
    """Run the command. Its help text is above."""
    if plot is not None:
        _check_plot(plot)
    requests = _read(trace)
    runs = [run_trace(requests, limit, Mode(mode), duration) for limit in limits]
    measured = memory.measure(runs) if with_memory and (as_json or not each) else None
    simulation = views.Simulation(requests, Mode(mode), runs, measured)
    if as_json:
        click.echo(json.dumps(simulation.as_dict(each=each), indent=2))
    else:
        table = views.arrivals_table if each else views.summary_table
        views.print_table(table(simulation))
    if plot is not None:
        from celery_throttle.cli.simulation.plot import save  # noqa: PLC0415  # an extra

        try:
            save(simulation, plot)
        except OSError as error:
            raise SimulationError(f"cannot write {plot}: {error}") from None


def _read(text: str) -> traces.Trace:
    generator = generated.find_generator(text)
    if generator is not None:
        return generated.generate(generator, text)
    if text != traces.STDIN and not Path(text).exists():
        forms = ", ".join(repr(one.form) for one in generated.GENERATORS.values())
        raise SimulationError(f"{text!r} is neither a file nor a trace; allowed: {forms}")
    return traces.read(text)


def _check_plot(path: Path) -> None:
    """Raise an error if the plot cannot be made, before the simulation runs."""
    if path.suffix.lower() not in _PLOTS:
        allowed = " or ".join(_PLOTS)
        raise SimulationError(f"{str(path)!r} is no plot; allowed: a name that ends in {allowed}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise SimulationError(
            f"cannot write {path}: there is no such directory, or it is not yours"
        )
    with require_extra("matplotlib", "a plot", "plot"):
        import matplotlib as mpl  # noqa: F401, PLC0415  # an extra
