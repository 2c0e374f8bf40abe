"""Everything on disk: run folders, checkpoints, tensor files, and the digests that show damage."""
