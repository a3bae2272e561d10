"""Tokenizer heterogeneity: text moves between vocabularies without changing a byte.

`TokenBytes` says which bytes each token stands for, `retokenize` gives a peer's text in the
receiver's vocabulary or refuses it, `align` finds the common pieces of two tokenisations, and
`audit` measures what all that costs. Importing this needs no deep-learning library. See
docs/tokens.md.
"""

from mrl.tokens._families import UnsupportedTokenizer
from mrl.tokens.alignment import align
from mrl.tokens.alignment_batch import BlockBatch, align_batch
from mrl.tokens.audit import TokenAudit, audit
from mrl.tokens.blocks import Blocks, apportion, block_all, block_sum, broadcast
from mrl.tokens.residual import ResidualSummary, canonicality_residual, summarise_residual
from mrl.tokens.retokenization import (
    ContentEncoder,
    Unrepresentable,
    is_canonical,
    is_canonical_batch,
    retokenize,
    retokenize_batch,
)
from mrl.tokens.token_bytes import TokenBytes

__all__ = [
    "BlockBatch",
    "Blocks",
    "ContentEncoder",
    "ResidualSummary",
    "TokenAudit",
    "TokenBytes",
    "UnsupportedTokenizer",
    "Unrepresentable",
    "align",
    "align_batch",
    "apportion",
    "audit",
    "block_all",
    "block_sum",
    "broadcast",
    "canonicality_residual",
    "is_canonical",
    "is_canonical_batch",
    "retokenize",
    "retokenize_batch",
    "summarise_residual",
]
