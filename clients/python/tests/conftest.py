from collections.abc import Iterator

import pytest
from testbed import Server, Testbed


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    with Testbed() as testbed:
        yield testbed


@pytest.fixture
def server(testbed: Testbed) -> Server:
    """A new server, with a proxy that fails on request."""
    return testbed.server()
