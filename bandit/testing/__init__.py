"""Tests for sharing rules and gradient estimators of one's own.

::

    from bandit.testing import check_rule

    def test_my_rule():
        check_rule(MyRule())

`check_rule` holds a rule to `LAWS`, `check_estimator` an estimator to a closed form; `worlds` and
`groups` are hypothesis strategies for laws of one's own. See docs/testing.md.
"""

from bandit.testing.estimators import check_estimator, from_rollouts, weighted_scores
from bandit.testing.examples import Case
from bandit.testing.law import Law, mean_weights
from bandit.testing.rules import LAWS, check_rule
from bandit.testing.strategies import groups, worlds

__all__ = [
    "LAWS",
    "Case",
    "Law",
    "check_estimator",
    "check_rule",
    "from_rollouts",
    "groups",
    "mean_weights",
    "weighted_scores",
    "worlds",
]
