"""A page to try a run on, and the same over REST."""

from lipscale.serve.app import create_app

__all__ = ["create_app"]
