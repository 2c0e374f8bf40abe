"""Speed as ratios: every number compares two things measured side by side in one run."""
