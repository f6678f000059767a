"""What all tests of the Redis store share."""

import secrets

import pytest


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test has: a store of its own on a shared server."""
    return f"test{secrets.token_hex(6)}"
