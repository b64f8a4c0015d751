"""Training: data whose best possible loss is known, the loop and what guards it, checkpoints, several processes."""
