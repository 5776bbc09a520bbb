"""What several commands share: options, types of parameters, the target, the console, errors."""
