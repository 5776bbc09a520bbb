"""``celery-throttle simulate``: the command, its options and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from celery_throttle.cli.shared.charts import plot_option
from celery_throttle.cli.shared.console import Row, Table, echo_json, echo_table
from celery_throttle.cli.shared.options import LIMIT, SECONDS, json_option
from celery_throttle.cli.shared.text import format_figure
from celery_throttle.cli.simulation.run import (
    ArrivalOutcome,
    SimulatedRun,
    figures,
    fullest_text,
    run_trace,
    save_charts,
)
from celery_throttle.cli.simulation.traces import GENERATORS, Trace, format_seconds, read_trace
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.text import count

#: What becomes of a refused request, by mode.
_MODES = {"drop": "a refused one is gone", "wait": "a refused one waits in line"}


def _forms() -> str:
    rows = [(one.form, one.description) for one in GENERATORS.values()]
    rows += [
        ("FILE", "CSV file; each row has a time and, optionally, a cost"),
        ("-", "the same, from standard input"),
    ]
    width = max(len(form) for form, _ in rows)
    return "\n".join(f"  {form:{width}}  {about}" for form, about in rows)


_HELP = f"""Play a trace of requests against limits.

No server is needed. Each limit decides over the whole trace by itself, with the algorithms that the
server runs. The table shows, for each limit, the number of admitted and refused requests, the most
units in any window of one period, and the waits of the admitted requests.

TRACE is one of:

\b
{_forms()}

Every trace except for a file takes an option such as cost=2, the cost of each request. A duration
or period is a number and a unit: us, ms, s, m, h, d, w or month. A time is a number of seconds
(61.5), a time of day (12:00:05) or a date and time (2026-07-01T09:30:00Z, in UTC if it has no
zone). A sliding log of thousands of entries takes some milliseconds per request.

\b
  celery-throttle simulate edges:100@60s,300s \\
      --limit "100/m using fixed-window" --limit "100/m using sliding-log"
"""


@click.command(help=_HELP)
@click.argument("trace")
@click.option(
    "--limit",
    "limits",
    type=LIMIT,
    multiple=True,
    required=True,
    help="Limit, such as '10/s burst 5' or '10 at once'. Repeat it to compare limits.",
)
@click.option(
    "--mode",
    type=click.Choice([*_MODES]),
    default="drop",
    show_default=True,
    help="drop: a refused request is lost. wait: it waits in a line, as tasks do.",
)
@click.option(
    "--duration",
    type=SECONDS,
    help="Time for which each request holds its slot, such as 0.5s; for 'at once' limits.",
)
@click.option(
    "--each", is_flag=True, help="Show the decision for each request instead of the summary."
)
@plot_option
@json_option
def simulate(
    trace: str,
    limits: tuple[Limit, ...],
    mode: str,
    duration: float | None,
    *,
    each: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Run the command. Its help text is above."""
    requests, slot_us = read_trace(trace), to_us(duration or 0.0)
    runs = [run_trace(requests, one, in_line=mode == "wait", slot_us=slot_us) for one in limits]
    if as_json:
        echo_json(_fields(requests, mode, runs, each=each))
    elif each:
        echo_table(_outcomes_table(requests, runs))
    else:
        arrivals = count(len(requests.arrivals), "arrival")
        span = format_seconds(requests.span)
        click.secho(f"{requests.name}: {arrivals} in {span} s; {_MODES[mode]}\n", bold=True)
        echo_table(_figures_table(runs))
        click.secho("\nwaits in seconds", dim=True)
    if plot is not None:
        save_charts(requests, runs, plot)


def _fields(
    trace: Trace, mode: str, runs: Sequence[SimulatedRun], *, each: bool
) -> dict[str, object]:
    """Return the figures for JSON; with ``each``, including the outcome of each arrival."""
    limits = [figures(run) for run in runs]
    result: dict[str, object] = {
        "trace": trace.name,
        "mode": mode,
        "arrivals": len(trace.arrivals),
        "span_s": float(format_seconds(trace.span)),
        "limits": limits,
    }
    if each:
        for limit, run in zip(limits, runs, strict=True):
            limit["starts_us"] = [one.start for one in run.outcomes]
        result["times_us"] = [one.time for one in trace.arrivals]
    return result


def _figures_table(runs: Sequence[SimulatedRun]) -> Table:
    rows = []
    for found in map(figures, runs):
        counts = (f"{found['admitted']:,}", f"{found['refused']:,}", fullest_text(found))
        names = ("wait_p50_s", "wait_p95_s", "wait_p99_s", "wait_max_s")
        waits = (format_figure(found[name], "{:.3f}") for name in names)
        rows.append(Row((found["limit"], *counts, *waits)))
    counted = (">admitted", ">refused", ">fullest window")
    return Table(("limit", *counted, ">wait p50", ">p95", ">p99", ">max"), rows)


def _outcomes_table(trace: Trace, runs: Sequence[SimulatedRun]) -> Table:
    """Return the table of all outcomes, one arrival per row; with costs if one is not 1."""
    has_costs = any(arrival.cost != 1 for arrival in trace.arrivals)
    rows = []
    for number, arrival in enumerate(trace.arrivals):
        cost = f" cost {arrival.cost}" if has_costs else ""
        outcomes = (_outcome(run.outcomes[number]) for run in runs)
        rows.append(Row((f"{arrival.label}{cost}", *outcomes)))
    return Table(("arrival", *(f">{run.limit}" for run in runs)), rows)


def _outcome(outcome: ArrivalOutcome) -> str:
    if outcome.start is None:
        return f"refused for {format_seconds(outcome.retry_after)} s"
    return f"admitted after {format_seconds(outcome.wait)} s" if outcome.wait else "admitted"
