"""Points over workers: the same results as alone; a worker that dies loses its point to another; no two on one GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import harness
from harness import cluster, measuring
from harness.errors import TilescopeError

distributed = pytest.importorskip("distributed")

TEXT = """
question = "Is it the same?"
metrics = ["global_load_bytes"]

[[points]]
stages = ["naive", "tiled"]
sizes = [16, 24, 32]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/experiment.toml").write_text(TEXT)
    return tmp_path / "mine"


class Fatal:
    """A task whose first run ends its worker's process."""

    backend, key, point = "sim", "fatal", "fatal"

    def __init__(self, mark: Path, deaths: int) -> None:
        self.mark, self.deaths = mark, deaths

    def run(self) -> measuring.Measurement:
        died = len(self.mark.read_text()) if self.mark.exists() else 0
        if died < self.deaths:
            self.mark.write_text("x" * (died + 1))
            os._exit(1)
        return measuring.Measurement({"pid": os.getpid()})


def test_workers_give_what_one_process_gives(folder):
    spread = harness.experiment(folder, backend="sim", workers=2)
    alone = harness.experiment(folder, backend="sim", fresh=True)
    assert spread.taken == ["measured"] * 6 and spread.table.equals(alone.table)
    assert [repr(m.values) for m in spread.measurements] == [repr(m.values) for m in alone.measurements]


@pytest.mark.parametrize("deaths", [1, 9])
def test_a_worker_that_dies_loses_its_point_to_another(tmp_path, monkeypatch, deaths):
    monkeypatch.setattr(cluster, "replace", lambda task, **changes: task)
    [(_, found)] = cluster.measure([Fatal(tmp_path / "mark", deaths)], 1, None, lambda words: None)
    assert ("died over it" in found.trouble) == (deaths == 9) and bool(found.row) == (deaths == 1)


def test_a_running_cluster_is_joined_and_one_that_is_not_is_named(folder, monkeypatch):
    monkeypatch.setattr(cluster, "WAIT_S", 3)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as running:
        assert len(harness.experiment(folder, backend="sim", scheduler=running.scheduler_address).points) == 6
        with pytest.raises(TilescopeError, match="no worker of the cluster has the resource GPU"):
            cluster.survey(running.scheduler_address, None)
    with pytest.raises(TilescopeError, match="cannot be used"):
        harness.experiment(folder, backend="sim", fresh=True, scheduler="tcp://127.0.0.1:9")


def test_workers_of_another_version_are_refused(folder, monkeypatch):
    monkeypatch.setattr(measuring, "code_version", lambda: "another")
    with pytest.raises(TilescopeError, match="another version of Tilescope"):
        harness.experiment(folder, backend="sim", workers=2)


def test_a_gpu_takes_one_worker(monkeypatch):
    from harness.gpu import devices

    gpu = type("Gpu", (), {"uuid": "GPU-1", "name": "x"})()
    monkeypatch.setattr(devices, "gpus", lambda: (gpu,))
    with pytest.raises(TilescopeError, match=r"WORKERS=2: here is 1 GPU\."):
        cluster._gpu_cluster(2)


def test_each_gpu_worker_sees_its_own_gpu_alone(monkeypatch):
    from harness.gpu import devices

    found = tuple(type("Gpu", (), {"uuid": f"GPU-{n}", "name": "x"})() for n in range(2))
    monkeypatch.setattr(devices, "gpus", lambda: found)
    with cluster._gpu_cluster(2) as running, distributed.Client(running) as client:
        client.wait_for_workers(2, timeout=60)
        workers = client.scheduler_info()["workers"].values()
        assert [w["resources"] for w in workers] == [{"GPU": 1}] * 2 and {w["nthreads"] for w in workers} == {1}
        assert set(client.run(lambda: os.environ.get("CUDA_VISIBLE_DEVICES")).values()) == {"GPU-0", "GPU-1"}
