"""What is written to disk: run folders, checkpoints, tensor files, digests, and how damage is found."""
