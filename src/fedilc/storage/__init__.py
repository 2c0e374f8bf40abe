"""What is written to disk: run folders, checkpoints, tensor files, and how damage is found."""
