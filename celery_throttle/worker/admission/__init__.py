"""May this task run now? The gate, and how it takes quota with few round trips."""
