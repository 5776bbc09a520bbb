"""The documentation: its code, its links, its names."""
