"""A master for the peers of a test."""

import pytest

from tests.training.crew import Crew


@pytest.fixture
def crew():
    made = Crew()
    yield made
    made.close()
