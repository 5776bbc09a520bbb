"""A task may not run now: it joins its line, or waits at the broker or in the worker."""
