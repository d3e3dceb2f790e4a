"""`python -m lipscale` is the command line."""

import os
import sys

from lipscale.cli import main

try:
    main()
except SystemExit as end:
    if "TORCHELASTIC_RUN_ID" not in os.environ or not isinstance(end.code, int):
        raise
    # under torchrun gloo's threads may still be at work, and the interpreter's own end would abort on them
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code)
