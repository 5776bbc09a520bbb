"""What several commands share: options, the target, the terminal, texts, charts and errors."""
