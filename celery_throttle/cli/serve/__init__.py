"""Commands that listen on a port: metrics and the web page."""
