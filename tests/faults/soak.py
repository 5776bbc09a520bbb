"""``make soak MINUTES=60``: the suite of faults again and again, at other moments each time."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="no round begins after these")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    arguments, rest = parser.parse_known_args()
    end = time.monotonic() + 60 * arguments.minutes
    seed = arguments.seed
    while time.monotonic() < end:
        print(f"round with FAULTS_SEED={seed}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "faults", "tests/faults", *rest],
            env={**os.environ, "FAULTS_SEED": str(seed)},
            check=False,
        )
        if done.returncode:
            sys.exit(done.returncode)
        seed += 1


if __name__ == "__main__":
    main()
