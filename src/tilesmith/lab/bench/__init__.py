"""How fast? Device time beside what a user would pick instead, held against what this device can do at most."""
