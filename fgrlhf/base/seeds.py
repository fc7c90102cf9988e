"""Seeds. This module imports no torch, so programs that need a seed only start fast."""

import hashlib
import json


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed, a pure function of its parts: `derive_seed(config.seed, "rollout", step)`."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
