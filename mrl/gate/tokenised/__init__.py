"""The tokenised bandit: every policy writes text in tokens of its own, and all of it is listed.

Retokenisation, canonicality and alignment run through `mrl.tokens`, as in the trainer, on a world
with known answers. Needs the tokenizers library, not torch. Source: docs/theory.md, section 7.
"""

from mrl.gate.tokenised.policies import TokenPolicy
from mrl.gate.tokenised.toys import toy_world
from mrl.gate.tokenised.transfer import Transfer
from mrl.gate.tokenised.world import TokenWorld

__all__ = ["TokenPolicy", "TokenWorld", "Transfer", "toy_world"]
