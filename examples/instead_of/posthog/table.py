"""The teams that may run more queries at once than the others."""

QUERIES_AT_ONCE = {7: 6}
