"""What a person sees of runs: tables, pictures, progress."""
