"""What sharing costs and what it gives: the plane, its frontier, and what to choose.

- `plane`, `aggregate`, `sweep`: cost and gain of given rules, by context and population.
- `settings`, `frontier`: a grid of settings, and those that no other setting beats on both axes.
- `break_even`, `break_even_map`: how many more own rollouts would do as much as sharing.
- `recommend`: the largest gain within a bound on the cost, with its reason.

Source: docs/theory.md, section 4.
"""

from bandit.tradeoff.breakeven import BreakEven, break_even, break_even_map
from bandit.tradeoff.frontier import frontier, non_dominated, settings
from bandit.tradeoff.plane import CONTROLS, aggregate, chi_squared, plane, sweep
from bandit.tradeoff.recommendation import Recommendation, recommend

__all__ = [
    "CONTROLS",
    "BreakEven",
    "Recommendation",
    "aggregate",
    "break_even",
    "break_even_map",
    "chi_squared",
    "frontier",
    "non_dominated",
    "plane",
    "recommend",
    "settings",
    "sweep",
]
