"""Many runs: the engine that does jobs, studies, inspections, and checks before a run."""
