"""Which pairs and which lengths are measured."""

from __future__ import annotations

import pytest

from baton.verify.evidence import EngineEvidence
from baton.verify.measure import LONGEST_TOKENS, fresh_prompt, lengths, sample


def engines(letter: str, count: int) -> list[EngineEvidence]:
    return [EngineEvidence(replica_id=f"{letter}{k}") for k in range(count)]


@pytest.mark.parametrize(("prefills", "decodes"), [(1, 1), (2, 6), (5, 3), (4, 4)])
def test_all_pairs_are_measured_where_there_are_few(prefills: int, decodes: int) -> None:
    """Each once."""
    pairs = sample(engines("p", prefills), engines("d", decodes), 1000)
    assert len(pairs) == prefills * decodes
    assert len({(one.replica_id, other.replica_id) for one, other in pairs}) == len(pairs)


def test_a_sample_holds_every_engine() -> None:
    """Of 48 pairs eight, and no engine is left out."""
    pairs = sample(engines("p", 6), engines("d", 8), 8)
    assert len(pairs) == 8
    assert len({one.replica_id for one, _ in pairs}) == 6
    assert len({other.replica_id for _, other in pairs}) == 8


@pytest.mark.parametrize("context", [0, 20, 2048, 4096, 1_000_000])
def test_lengths_fit_into_the_context(context: int) -> None:
    """And are bounded for a long one; a thousand tokens where nobody says."""
    found = lengths(context)
    assert found == tuple(sorted(found))
    assert max(found) <= min(max(context, 16) if context else 1024, LONGEST_TOKENS)


def test_prompts_are_new_each_time() -> None:
    """A cache that has seen a prompt would hand over nothing."""
    assert fresh_prompt(64) != fresh_prompt(64)
    assert len(fresh_prompt(7)) == 7
