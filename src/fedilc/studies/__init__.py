"""Many runs: the paper's benchmarks, sweeps, and checks before a run."""
