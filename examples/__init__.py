"""Small real programs. Each says in its first lines how to run it; the tests run them all."""
