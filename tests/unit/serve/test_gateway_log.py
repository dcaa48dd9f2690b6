"""One line for each request is enough: the gateway's."""

from __future__ import annotations

import inspect
import logging

from ray.serve._private import replica
from ray.serve._private.constants import SERVE_LOGGER_NAME

from baton.serve.gateway import not_serves_access_line


def test_serves_line_for_each_request_is_left_out_and_the_others_stay() -> None:
    """By the mark that Serve itself puts on it."""
    plain = logging.makeLogRecord({"msg": "Started executing"})
    line = logging.makeLogRecord({"msg": "POST / 200 859.7ms", "serve_access_log": True})
    assert not_serves_access_line(plain)
    assert not not_serves_access_line(line)


def test_ray_marks_its_line_so_and_writes_it_with_that_logger() -> None:
    """Another Ray may not: then there are two lines again, and this fails."""
    assert '"serve_access_log": True' in inspect.getsource(replica)
    assert replica.logger is logging.getLogger(SERVE_LOGGER_NAME)
    assert SERVE_LOGGER_NAME == "ray.serve"
