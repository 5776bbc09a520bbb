"""What limits and waiting tasks look like now, and how they have been: values, and plans that read.

Each plan reads as much as it returns, page by page where there may be much. The commands, the
web page and the worker's reports show these values. Imports forecasts and all below.
"""
