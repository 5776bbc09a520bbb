"""Rules files: limits, weights and routes in TOML, read, compared, written and watched.

A rules file is a layer between the limits of the code and those defined at run time.
"""
