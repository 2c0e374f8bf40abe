"""The command `fedilc`, one module per subcommand."""

import os


def main() -> None:
    """Run the command, with the commands of plug-ins."""
    # Threads that wait would spin, and on a busy machine take the cores from those that compute.
    # The library of threads reads this when torch loads it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from fedilc.cli.app import main as run_command

    run_command()
