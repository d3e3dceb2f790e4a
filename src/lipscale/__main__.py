"""`python -m lipscale` is the command line."""

from lipscale.cli import main

main()
