"""Points of an experiment over workers: Dask distributed, on this machine's cores or GPUs, or on a cluster that is running.

A worker takes one point at a time; on a GPU backend a point takes the resource GPU=1, of which each worker has one, so that no
GPU ever times two. A worker that dies loses its current point, which another one takes over. Results come back as they are
finished, and the process that asked writes them to its journal: it is the only one that writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .environment import cores
from .errors import TilescopeError
from .measuring import Measurement, Task

if TYPE_CHECKING:
    from distributed import Client

    from .gpu.devices import Gpu

DEATHS = 2
"""Workers that may die over a point before it counts as one that cannot be measured."""
WAIT_S = 60
"""Seconds to wait for a cluster, and for its first worker."""
GPU = {"GPU": 1}


def measure(
    tasks: Sequence[Task], workers: int, scheduler: str | None, say: Callable[[str], None]
) -> Iterator[tuple[Task, Measurement]]:
    """Every task with its measurement, in the order they are finished.

    Raises TilescopeError where Dask is missing, the cluster cannot be reached or has no worker that could do the work.
    """
    from distributed import as_completed

    backend = tasks[0].backend
    say("starting workers")
    with _client(backend, workers, scheduler) as (client, threads):
        needs = GPU if backend == "gpu" else None
        asked = {
            client.submit(_run, replace(task, threads=threads), key=f"point-{task.key}", pure=False, resources=needs): task
            for task in tasks
        }  # fmt: skip
        say(f"{len(client.scheduler_info()['workers'])} workers")
        for future in as_completed(list(asked)):
            task = asked.pop(future)
            yield task, _outcome(future)
            future.release()


def _run(task: Task) -> Measurement:
    """A task on a worker; on its own GPU, which must be of the kind that was asked for."""
    if task.backend == "gpu":
        from .gpu import client, devices

        client.keep()
        mine = devices.find(None)
        if mine.name != task.gpu_name:
            raise TilescopeError(
                f"a worker has a {mine.name}; the experiment is run for a {task.gpu_name}.",
                "Use workers with one kind of GPU.",
            )
        task = replace(task, gpu=mine.uuid)
    return task.run()


def _outcome(future: Any) -> Measurement:
    """Raises what a worker raised; a point over which workers died has that as its trouble."""
    from distributed.scheduler import KilledWorker

    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, KilledWorker):
        return Measurement(trouble=f"{DEATHS + 1} workers died over it, one after another.")
    raise error


@contextmanager
def _client(backend: str, workers: int, scheduler: str | None) -> Iterator[tuple[Client, int]]:
    """A client and the cores that each point may use."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as e:
        raise TilescopeError(
            f"WORKERS= and SCHEDULER= need Dask: {e}.", "Install it in .venv: pip install '.[scale]'."
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    settings = {"distributed.scheduler.allowed-failures": DEATHS, "distributed.worker.daemon": False}
    with dask.config.set(settings):
        if scheduler:
            try:
                client = Client(scheduler, timeout=WAIT_S)
                client.wait_for_workers(1, timeout=WAIT_S)
            except (OSError, TimeoutError, ValueError) as e:
                raise TilescopeError(
                    f"SCHEDULER={scheduler} cannot be used: {e or type(e).__name__}.",
                    "Give the address that dask-scheduler prints, tcp://HOST:8786, and start workers.",
                ) from e
            with client:
                _check(client, backend)
                yield client, 1
            return
        if backend == "gpu":
            cluster, threads = _gpu_cluster(workers), 1
        else:
            threads = max(1, cores() // workers)
            cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
            )
        with cluster, Client(cluster) as client:
            yield client, threads


def _gpu_cluster(workers: int) -> Any:
    """A worker for each of the first GPUs, which alone it sees. Raises TilescopeError where there are not so many."""
    from distributed import Nanny, Scheduler, SpecCluster

    from .gpu import devices

    found = devices.gpus()
    if workers > len(found):
        raise TilescopeError(
            f"WORKERS={workers}: here {'is' if len(found) == 1 else 'are'} {len(found)} GPU{'s' * (len(found) != 1)}.",
            "A GPU takes one worker: two would spoil each other's times.",
        )
    options = {"nthreads": 1, "resources": GPU, "silence_logs": logging.CRITICAL}
    return SpecCluster(
        scheduler={"cls": Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}},
        workers={
            g.uuid: {"cls": Nanny, "options": {**options, "env": {"CUDA_VISIBLE_DEVICES": g.uuid}}}
            for g in found[:workers]
        },
    )


def _check(client: Client, backend: str) -> None:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if backend == "gpu" and not any(w["resources"].get("GPU") for w in workers):
        raise TilescopeError(
            "no worker of the cluster has the resource GPU.",
            "Start one for each GPU: CUDA_VISIBLE_DEVICES=UUID dask worker ADDRESS --nthreads 1 --resources GPU=1.",
        )


def survey(scheduler: str, how: Any) -> tuple[Gpu, dict[str, str]]:
    """The GPU of a worker of a running cluster, and the tool versions there."""
    with _client("gpu", 0, scheduler) as (client, _):
        return client.submit(_surveyed, how, pure=False, resources=GPU).result()


def _surveyed(how: Any) -> tuple[Gpu, dict[str, str]]:
    from . import measuring
    from .gpu import devices

    mine = devices.find(None)
    return mine, measuring.tools(how, mine)
