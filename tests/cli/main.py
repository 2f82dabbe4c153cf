"""The command, for processes that tests start: ``python -m tests.cli.main``."""

from fluss_df.cli import app

if __name__ == "__main__":
    app()
