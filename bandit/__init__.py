"""Theory of experience sharing: contextual bandits in which sharing rules can be analysed."""

from bandit import dynamics, exact, sampling, tradeoff
from bandit.residual import Residual
from bandit.world import World

__all__ = ["Residual", "World", "dynamics", "exact", "sampling", "tradeoff"]
