"""Checks of silos and test set before training: problems, which stop it, and notes, which do not."""
