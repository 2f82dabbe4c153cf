"""``python -m fluss_df``: the same as the command ``fluss-df``."""

from fluss_df.cli import app

if __name__ == "__main__":
    app(prog_name="fluss-df")
