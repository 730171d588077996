"""Tests over real processes; without torch there are none."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") and find_spec("torch").origin else ["test_*"]


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store that no site holds."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store
