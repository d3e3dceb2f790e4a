"""The benchmarks of a step run: each contestant takes one, in both precisions. How long it takes is theirs to say."""

import pytest
import torch
from benchmarks.__main__ import report
from benchmarks.contestants import CONTESTANTS, EXTRA, Contestant


@pytest.mark.parametrize("name", [*CONTESTANTS, *EXTRA])
def test_every_contestant_learns_from_a_step_in_either_precision(name):
    contestant = Contestant({**CONTESTANTS, **EXTRA}[name], 4, batch=4)
    for step in (contestant.train_step, contestant.train_step_bfloat16):
        before = [p.detach().clone() for p in contestant.net.parameters()]
        step()
        after = list(contestant.net.parameters())
        assert all(p.dtype == torch.float32 and p.isfinite().all() for p in after)
        assert any(not torch.equal(p, q) for p, q in zip(after, before, strict=True))
    assert contestant.predict().shape == (4, 10)


def test_the_report_tells_ratios_to_the_twin():
    text = report({"train_step_bfloat16": {"16": {"twin": 0.2, "lipscale": 0.25}}})
    assert "### train step bfloat16" in text
    assert "| 16 | 1.00 | 1.25 | twin: 0.2 s |" in text
