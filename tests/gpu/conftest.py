import pytest
from fake_gpu import Fake, install


@pytest.fixture
def fake(monkeypatch):
    """A GPU that is not there, in place of PyCUDA, nvmath, NVML and NVTX."""
    found = Fake()
    install(monkeypatch, found)
    return found
