"""The command `fedilc`, one module per subcommand."""


def main() -> None:
    """Run the command, with the commands of plug-ins."""
    from fedilc.cli.app import main as run_command

    run_command()
