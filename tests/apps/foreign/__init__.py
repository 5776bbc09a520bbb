"""An app that its users configure and cannot change: it knows nothing of limits.

Like Airflow's executor, it reads the name of a dict of settings from the environment.
"""
