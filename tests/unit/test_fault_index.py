"""The index of faults names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_named_in_the_index_of_faults_exists():
    page = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
    index = page.partition("## Faults that other trainers shipped")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", index))
    defined = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 15
    assert named <= defined
