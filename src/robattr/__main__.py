"""`python -m robattr` is the command `robattr`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without its packages, say how to get them."""
    try:
        try:
            from robattr.cli import run
        except ModuleNotFoundError as missing:
            if missing.name not in {"typer", "rich"}:
                raise
            sys.exit('robattr: the command line needs two more packages: pip install "robattr[all]"')
        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
