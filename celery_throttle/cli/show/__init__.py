"""Commands that show limits and waiting tasks."""
