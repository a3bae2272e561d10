"""``python -m mrl``: the command line."""

from mrl.cli import main

main()
