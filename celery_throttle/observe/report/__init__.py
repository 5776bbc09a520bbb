"""What was counted at limits in the last days, and what follows from it."""
