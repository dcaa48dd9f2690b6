"""What is shown of a message is the program's own words, numbers and request ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.deploy.support.templates import Templates, templates_in

SOURCE = """
logger.info("Loading took %.2f seconds of %s", 1.0, name)
logger.warning_once(f"Model {name} is old: {why}!")
logger.debug("Details of %s: prompt: %r.", rid, prompt)
logger.error(message)
logger.error("%s", message)
log.info("draining")
logger.info(
    "two lines "
    "of one %d%%",
    5,
)
"""


@pytest.fixture
def templates(tmp_path):
    (tmp_path / "x.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def (")
    return Templates.below([tmp_path])


@pytest.mark.parametrize(
    ("line", "message", "shown"),
    [
        (2, "Loading took 1.25 seconds of my secret", "Loading took 1.25 seconds of …"),
        (3, "Model x y is old: z w!", "Model … is old: …!"),
        (4, "Details of r-0123456789ab-p0: prompt: 'a.b.'.",
         "Details of r-0123456789ab-p0: prompt: …."),
        (7, "draining", "draining"),
        (8, "two lines of one 5%", "two lines of one 5%"),
        (10, "two lines of one 5%", "two lines of one 5%"),
        (7, "draining fast", None),
        (5, "anything", None),
        (6, "anything", None),
        (2, "Model x is old: y!", None),
        (99, "draining", None),
    ],
)  # fmt: skip
def test_a_message_is_shown_as_the_line_that_wrote_it(templates, line, message, shown):
    """By file and line; a message that this line cannot have written is not shown."""
    assert templates.at("x.py", line, message) == shown


def test_files_that_are_not_there_or_cannot_be_read_show_nothing(templates):
    """Nor fail."""
    assert templates.at("y.py", 1, "draining") is None
    assert templates.at("broken.py", 1, "draining") is None
    assert not templates.knows("y.py")


@given(st.text(max_size=60))
def test_whatever_a_slot_holds_its_letters_do_not_come_out(text):
    """Of any message that fits, words of ours and numbers are left."""
    for template in templates_in(SOURCE):
        filled = "".join("<" + text + ">" if part is None else part for part in template.parts)
        shown = template.show(filled)
        if shown is not None:
            words = "".join(part or "" for part in template.parts)
            assert {c for c in shown if c.isalpha()} <= {c for c in words if c.isalpha()}


def test_a_line_made_to_be_slow_is_read_in_time_that_grows_with_it():
    """Each word is looked for once."""
    (template,) = templates_in('log.info("%s, %s, %s, %s, %s, %s, %s, %s, %s end", *a)')
    assert template.show(", " * 100_000) is None
