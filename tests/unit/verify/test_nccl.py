"""`all_reduce_perf`'s output, read."""

from __future__ import annotations

import pytest

from baton.errors import EnvironmentUnfit
from baton.verify import nccl

# The form that nccl-tests prints (its README); the figures are made up.
OUTPUT = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    26.45   39.64   39.64      0    26.33   39.83   39.83      0
   134217728      33554432     float     sum      -1    541.2  248.00  248.00      0    540.1  248.51  248.51    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 143.995
"""  # noqa: E501


def test_the_largest_size_and_the_average_are_read() -> None:
    """Bus bandwidth, the better of both placements."""
    found = nccl.read_all_reduce(OUTPUT)
    assert found == nccl.AllReduce(134_217_728, 248.51, 143.995, 0)


def test_wrong_results_are_counted() -> None:
    """A fast link that changes values is no link."""
    found = nccl.read_all_reduce(OUTPUT.replace("39.64      0", "39.64      3"))
    assert found is not None
    assert found.wrong == 3


def test_output_without_results_is_none() -> None:
    """Such as a crash before the first size."""
    assert nccl.read_all_reduce("CUDA failure: no device") is None


def test_a_machine_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fact and cure."""
    monkeypatch.setattr(nccl.shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentUnfit) as caught:
        nccl.run_all_reduce(2)
    assert "nccl-tests" in str(caught.value.cure)
