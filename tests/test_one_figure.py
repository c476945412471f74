"""A figure that is printed twice is the same twice; what is shortened is never an id."""

import re

import pandas as pd

from harness import experiment_report, profiling, report


def test_bounds_and_findings_speak_of_the_same_attainable_speed():
    for size in (512, 1024):
        text = " ".join(report.render(profiling.profile("tiled2d", size=size, record=False)).split())
        said = set(re.findall(r"([\d.]+) TFLOPS of 66\.9 are attainable", text))
        assert len(said) == 1, said


def test_ids_are_kept_whole():
    run = "20261130T195221Z-a538c889"
    table = pd.DataFrame(
        [{"started": "2026-11-30T19:52:21.000Z", "kind": "experiment", "what": "a question that is long " * 4, "stage": "warptiled",
          "tunables": "BM=128 BN=128 BK=8", "device": "h200", "backend": "gpu", "points": 12, "ok": True, "run": run}]
    )  # fmt: skip
    assert run in experiment_report.render_index(table)
