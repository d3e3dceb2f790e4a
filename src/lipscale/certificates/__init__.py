"""What is proven: radii, certified confidence, certified accuracy; and how we try to break it."""

from lipscale.certificates.certificate import Certificate, certified_accuracy, certify

__all__ = ["Certificate", "certified_accuracy", "certify"]
