"""Reports into tables: through ncu_report, through ncu's CSV, and which launch is which."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness import metrics
from harness.errors import TilescopeError
from harness.ncu import reading
from harness.ncu.reading import Counted
from harness.stage import Launch

from .fakes import FakeAction, FakeMetric, FakeNcu, module

BASE = 0x7FE44D2F0A00
REPORT = Path("report.ncu-rep")
CSV = """==PROF== Connected to process 1
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","gpu__time_duration.sum","launch__shared_mem_per_block_static","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum","sm__warps_active.avg.pct_of_peak_sustained_active","memory_l1_wavefronts_shared","dram__bytes_read.sum","lts__t_sectors_op_read.sum","smsp__new_thing.avg"
"","","","","","","","","","","","usecond","Kbyte/block","inst","%","","Mbyte","sector","Ghz"
"0","42","python3.12","host","tiled2d(int, int, int, float, const float *, int)","1","7","(64, 1, 1)","(8, 8, 1)","0","9.0","54.18","4.10","134,217,728","11.2","3,276,800","2.10","n/a","1.98"
"1","42","python3.12","host","tiled2d_edge(int, int)","1","7","(64, 1, 1)","(1, 8, 1)","0","9.0","12","4.10","0","5 (4; 6)","0","0.00","7",""
"""  # noqa: E501


def test_instances_become_byte_offsets_with_lines() -> None:
    action = FakeAction(
        "tiled2d",
        {
            "memory_l1_wavefronts_shared": FakeMetric(12, "", {BASE + 32: 8, BASE + 48: 4}),
            "inst_executed": FakeMetric(6, "inst", {BASE: 2, BASE + 16: 2, BASE + 32: 1, BASE + 48: 1}),
            "launch__kernel_name": FakeMetric("tiled2d"),
            "smsp__nothing": FakeMetric(None),
            "sass__inst_executed_per_opcode": FakeMetric(6, "inst", {"FFMA": 4, "LDS": 2}),
            "launch__grid_dim_x": FakeMetric(8), "launch__grid_dim_y": FakeMetric(4), "launch__grid_dim_z": FakeMetric(1),
        },
        ("stage tiled2d", "launch main"),
        {BASE + 32: ("/k/tiled2d.cu", 65), BASE + 48: ("/k/tiled2d.cu", 65)},
    )  # fmt: skip
    (one,), notes = reading.read_with(module([action]), REPORT), []
    assert one.per_pc["memory_l1_wavefronts_shared"] == {32: 8, 48: 4}
    assert one.per_pc["inst_executed"][0] == 2
    assert one.lines == {32: ("/k/tiled2d.cu", 65), 48: ("/k/tiled2d.cu", 65)}
    assert one.opcodes == {"FFMA": 4, "LDS": 2} and one.strings == {"launch__kernel_name": "tiled2d"}
    assert one.grid == (8, 4, 1) and one.ranges == ("stage tiled2d", "launch main")
    assert "smsp__nothing" not in one.values and one.sass[32].startswith("FFMA") and not notes


def test_two_instances_of_an_address_add_up() -> None:
    class Twice(FakeMetric):
        def correlation_ids(self) -> FakeMetric:
            return FakeMetric(None, instances={0: BASE, 1: BASE})

    action = FakeAction("k", {"inst_executed": Twice(5, "", {0: 2, 1: 3})})
    assert reading.read_with(module([action]), REPORT)[0].per_pc["inst_executed"] == {0: 5}


@pytest.mark.parametrize(
    "name, value, unit, ours",
    [
        ("gpu__time_duration.sum", 1.5, "msecond", 1.5e6),
        ("gpu__time_duration.sum", 7.0, "us", 7e3),
        ("gpu__time_duration.sum", 2.0, "nsecond", 2.0),
        ("launch__shared_mem_per_block_static", 4.096, "Kbyte/block", 4096.0),
        ("dram__bytes_read.sum", 3.0, "Gbyte", 3e9),
        ("dram__bytes_read.sum", 3.0, "byte", 3.0),
        ("sm__cycles_elapsed.avg.per_second", 1.98, "Ghz", 1.98e9),
        ("dram__bytes_read.sum.per_second", 4.2, "Tbyte/s", 4.2e12),
        ("lts__t_sectors_op_read.sum", 5.0, "sector", 5.0),
        ("sm__warps_active.avg.pct_of_peak_sustained_active", 31.2, "%", 31.2),
        ("launch__registers_per_thread", 96.0, "register/thread", 96.0),
    ],
)
def test_units(name: str, value: float, unit: str, ours: float) -> None:
    assert reading.in_our_unit(name, value, unit) == pytest.approx(ours)


def test_csv() -> None:
    main, edge = reading.read_raw(CSV)
    assert (main.kernel, main.grid, main.block) == ("tiled2d", (8, 8, 1), (64, 1, 1))
    assert main.values[metrics.FFMA] == 134217728 and main.values[metrics.SHARED] == 3276800
    assert main.values["gpu__time_duration.sum"] == pytest.approx(54180)
    assert main.values["launch__shared_mem_per_block_static"] == pytest.approx(4100)
    assert math.isnan(main.values["lts__t_sectors_op_read.sum"])
    assert main.units == {"smsp__new_thing.avg": "Ghz"} and main.values["smsp__new_thing.avg"] == pytest.approx(1.98e9)
    assert edge.kernel == "tiled2d_edge" and edge.values["sm__warps_active.avg.pct_of_peak_sustained_active"] == 5
    assert "smsp__new_thing.avg" not in edge.values


@pytest.mark.parametrize("text", ["", "==ERROR== nothing", '"ID","Kernel Name"\n"",""\n'])
def test_csv_with_no_launch(text: str) -> None:
    assert reading.read_raw(text) == []


def test_without_the_module_ncus_csv_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load_module", lambda folders=(): None)
    fake = FakeNcu(tmp_path, csv=CSV)
    found, notes = reading.read(REPORT, fake.ncu)
    assert [c.kernel for c in found] == ["tiled2d", "tiled2d_edge"]
    assert "CSV" in notes[0] and "pip install ncu-report" in notes[0]
    assert fake.calls[-1][:5] == ["--import", "report.ncu-rep", "--csv", "--page", "raw"]


def test_a_report_newer_than_the_module_is_read_through_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (module([]), module([], RuntimeError("unknown report version"))):
        monkeypatch.setattr(reading, "load_module", lambda folders=(), m=broken: m)
        found, notes = reading.read(REPORT, FakeNcu(tmp_path, csv=CSV).ncu)
        assert len(found) == 2 and "ncu_report" in notes[0]


def test_nothing_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load_module", lambda folders=(): None)
    with pytest.raises(TilescopeError, match="ncu-report"):
        reading.read(REPORT)
    with pytest.raises(TilescopeError, match="cannot be read"):
        reading.read(REPORT, FakeNcu(tmp_path, csv="==ERROR== no").ncu)


def test_the_module_of_ncus_own_folder_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/ncu_report.py").write_text("import a_library_that_is_not_there\n")
    (tmp_path / "good").mkdir()
    (tmp_path / "good/ncu_report.py").write_text("mine = True\n")
    real = reading.importlib.import_module
    tried = []

    def installed(name: str) -> object:
        tried.append(name)
        if len(tried) == 1:
            raise ImportError
        return real(name)

    monkeypatch.setattr(reading.importlib, "import_module", installed)
    monkeypatch.delitem(reading.sys.modules, "ncu_report", raising=False)
    before = list(reading.sys.path)
    found = reading.load_module([tmp_path / "broken", tmp_path / "good"])
    assert found.mine and reading.sys.path == before
    reading.sys.modules.pop("ncu_report", None)


MAIN = Launch("tiled2d", (15, 15, 1), (64, 1, 1), (64, 64))
RIGHT = Launch("tiled2d_edge", (1, 15, 1), (64, 1, 1), (64, 64), label="right")
BOTTOM = Launch("tiled2d_edge", (15, 1, 1), (64, 1, 1), (64, 64), label="bottom")


def counted(kernel: str, *ranges: str, grid: tuple | None = None) -> Counted:
    return Counted(kernel, grid=grid, ranges=ranges)


def test_launches_are_matched_by_their_range() -> None:
    found = [counted("tiled2d_edge", "stage tiled2d", "launch bottom"), counted("tiled2d_edge", "stage tiled2d", "launch right"),
             counted("tiled2d", "stage tiled2d", "launch main")]  # fmt: skip
    taken, notes = reading.match(found, [MAIN, RIGHT, BOTTOM])
    assert [c.label for c in taken] == ["main", "right", "bottom"] and not notes
    assert taken[2] is found[0]


def test_without_ranges_by_kernel_and_grid_in_order() -> None:
    found = [
        counted("poison"),
        counted("tiled2d"),
        counted("tiled2d_edge", grid=(15, 1, 1)),
        counted("tiled2d_edge", grid=(1, 15, 1)),
    ]
    taken, notes = reading.match(found, [MAIN, RIGHT, BOTTOM])
    assert [(c.label, c.grid) for c in taken] == [
        ("main", None),
        ("right", (1, 15, 1)),
        ("bottom", (15, 1, 1)),
    ] and not notes


def test_a_launch_not_seen_is_noted() -> None:
    taken, notes = reading.match([counted("tiled2d")], [MAIN, RIGHT])
    assert [c.label for c in taken] == ["main"] and "right" in notes[0]


def test_other_kernels_alone_are_an_error() -> None:
    with pytest.raises(TilescopeError, match="poison"):
        reading.match([counted("poison")], [MAIN])


def test_nvidias_module_has_what_is_called() -> None:
    """The real module, where it is installed: a method that went away would otherwise show on a GPU only."""
    real = pytest.importorskip("ncu_report")
    methods = {
        "IAction": "name metric_names metric_by_name source_info sass_by_pc nvtx_state",
        "IMetric": "kind has_value as_double as_uint64 as_string unit num_instances has_correlation_ids correlation_ids",
        "IRange": "num_actions action_by_idx",
        "IContext": "num_ranges range_by_idx",
        "INvtxState": "domains domain_by_id",
        "INvtxDomainInfo": "name push_pop_ranges",
        "ISourceInfo": "file_name line",
    }
    for name, words in methods.items():
        assert all(callable(getattr(getattr(real, name), word)) for word in words.split())
    assert {"ValueKind_STRING", "ValueKind_ANY", "ValueKind_UNKNOWN"} <= set(dir(real.IMetric))


def test_a_file_that_is_no_report(tmp_path: Path) -> None:
    real = pytest.importorskip("ncu_report")
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0 not a report")
    with pytest.raises(reading.Unreadable):
        reading.read_with(real, path)
    with pytest.raises(reading.Unreadable):
        reading.read_with(real, tmp_path / "absent.ncu-rep")
