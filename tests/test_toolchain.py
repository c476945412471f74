"""From stage to Binary: the ELF file, the disassembly, the cache and what is said when something is missing."""

from pathlib import Path

import pytest

from harness import cubin, stage, toolchain
from harness.errors import TilescopeError
from harness.stage import Stage

DATA = Path(__file__).parent / "data" / "article_kernels"


@pytest.fixture
def source(tmp_path):
    def write(text, name="k.cu"):
        path = tmp_path / name
        path.write_text(text)
        return Stage("k", "", lambda p, t: [], source=path)

    return write


GOOD = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1; }\n'


def test_what_the_elf_file_says():
    functions = cubin.read((DATA / "article_kernels_tile32.cubin").read_bytes())
    assert sorted(functions) == ["naive", "tiled", "tiled2d"]
    f = functions["tiled2d"]
    assert (f.registers, f.static_shared, f.frame, f.param_base) == (96, 4096 + 1024, 0, 0x210)  # 1 KiB is the driver's
    assert f.params == [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 4)]
    assert f.words[0] & 0xFFF == 0xB82  # LDC, the first instruction


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"\x7fELF\x02" + b"\xff" * 200])
def test_a_file_that_is_no_cubin(damage):
    with pytest.raises(TilescopeError, match="cubin"):
        cubin.read(damage)


def test_a_truncated_cubin():
    whole = (DATA / "article_kernels_tile32.cubin").read_bytes()
    with pytest.raises(TilescopeError, match="cubin"):
        cubin.read(whole[: len(whole) // 2])


def test_disassembly_and_lines():
    binary = toolchain.load(DATA / "article_kernels_tile32.cubin")
    kernel = binary.kernel("tiled2d")
    assert binary.arch == 90 and len(kernel.instructions) == 600
    assert kernel.instructions[0].text == "LDC R1, c[0x0][0x28]" and kernel.instructions[0].line == 22
    assert {i.line for i in kernel.instructions if i.base == "FFMA"} == {36}
    with pytest.raises(TilescopeError, match="no kernel nope; it has"):
        binary.kernel("nope")


def test_hash_is_of_the_machine_code_alone(source, tmp_path):
    a = toolchain.compile(source(GOOD), {}, 90)
    b = toolchain.compile(source("// a comment\n\n\n" + GOOD, "other.cu"), {}, 90)
    c = toolchain.compile(source(GOOD.replace("= 1", "= 2"), "third.cu"), {}, 90)
    assert a.kernel("k").hash == b.kernel("k").hash != c.kernel("k").hash
    assert a.hash == b.hash != c.hash


def test_a_change_of_an_included_file_is_compiled_again(source, tmp_path):
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    s = source('#include "value.h"\n' + GOOD.replace("= 1", "= VALUE"))
    before = toolchain.compile(s, {}, 90)
    (tmp_path / "value.h").write_text("#define VALUE 2\n")
    assert toolchain.compile(s, {}, 90).hash != before.hash


def test_compiler_message_and_line_are_shown(source):
    with pytest.raises(
        TilescopeError, match=r"k.cu does not compile:(.|\n)*k.cu\(3\): error: identifier \"nonsense\" is undefined"
    ):
        toolchain.compile(source("\n\n" + GOOD.replace("= 1", "= nonsense")), {}, 90)


@pytest.mark.parametrize(
    "log, refused",
    [
        ('k.cu(3): error: identifier "nonsense" is undefined', True),
        ("pieces.cuh(12): catastrophic error: too many errors", True),
        ("ptxas error   : Entry function 'k' uses too much shared data (0x20000 bytes, 0xc000 max)", True),
        ("ptxas info    : 0 bytes gmem\nnvcc fatal   : Could not open output file", False),
        ('k.cu(3): warning #177-D: variable "x" was declared but never referenced\nNo space left on device', False),
        ("ptxas fatal   : Could not open output file 'kernel.cubin'", False),
    ],
)
def test_what_is_of_the_source_and_what_of_the_machine(log, refused):
    assert toolchain._refuses(log) is refused


def test_a_failed_compilation_leaves_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TilescopeError):
        toolchain.compile(source("#error stop\n"), {}, 90)
    assert not list((tmp_path / "cache" / "binaries").iterdir())


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(toolchain, "packaged", lambda tool: None)
    monkeypatch.setenv("PATH", "/nowhere")
    toolchain.tools.cache_clear()
    toolchain.compiler.cache_clear()
    with pytest.raises(TilescopeError, match="no CUDA compiler"):
        toolchain.tools()
    toolchain.tools.cache_clear()
    toolchain.compiler.cache_clear()


def test_a_compiler_that_is_not_there():
    with pytest.raises(TilescopeError, match="NVCC=/nowhere/nvcc: no such compiler"):
        toolchain.tools("/nowhere/nvcc")


def test_a_cache_that_cannot_be_written(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(TilescopeError, match="cannot write the cache"):
        toolchain.compile(source(GOOD), {}, 90)


def test_least_architecture(source):
    s = source(GOOD)
    newer = Stage("k", "", lambda p, t: [], source=s.source, least_arch=80)
    with pytest.raises(TilescopeError, match="needs sm_80 or newer"):
        toolchain.compile(newer, {}, 75)


def test_spills_are_read_from_the_compiler():
    log = "ptxas info    : Function properties for k\n    40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads\n"
    assert toolchain._spills(log, "k") == (36, 44) and toolchain._spills(log, "other") == (0, 0)


def test_operands_are_split_outside_brackets():
    assert toolchain.split_operands("R0,desc[UR4][R2.64+0x10],c[0x0][0x210],!PT") == (
        "R0",
        "desc[UR4][R2.64+0x10]",
        "c[0x0][0x210]",
        "!PT",
    )


def test_every_guard_in_text_is_the_one_in_the_bits():
    """nvdisasm's JSON takes the PR of P2R for the guard; everywhere else text and encoding must agree."""
    s = stage.find("tiled2d")
    for arch in (75, 86, 90):
        for kernel in toolchain.compile(s, s.configure(), arch).kernels.values():
            for i in kernel.instructions:
                if "U" not in i.predicate and i.base[0] != "U":
                    assert i.predicate.replace("T", "7") == toolchain._guard(i.word).replace("T", "7"), i


def test_an_old_disassembler_is_refused(monkeypatch):
    monkeypatch.setattr(toolchain, "_version", lambda tool, name: "13.4.92" if "nvdisasm" in str(tool) else "13.0.88")
    toolchain.tools.cache_clear()
    with pytest.raises(
        TilescopeError, match=r"nvdisasm 13\.4\.92 .* is too old(.|\n)*pip install nvidia-cuda-nvdisasm"
    ):
        toolchain.tools()
    toolchain.tools.cache_clear()


def test_a_path_with_a_dollar_is_not_expanded(tmp_path, monkeypatch):
    """Neither the stage's, the cache's nor the compiler's own."""
    home = tmp_path / "a $HOME $x"
    home.mkdir()
    (home / "k.cu").write_text(GOOD)
    cuda = toolchain.compiler()[0].resolve().parent.parent
    (home / "cuda").mkdir()
    for part in cuda.iterdir():
        (home / "cuda" / part.name).symlink_to(part)
    monkeypatch.setenv("TILESCOPE_CACHE", str(home / "cache"))
    found = toolchain.compile(
        Stage("k", "", lambda p, t: [], source=home / "k.cu"), {}, 90, str(home / "cuda/bin/nvcc")
    )
    assert {i.file for i in found.kernel("k").instructions} == {str(home / "k.cu")}
    assert not list((home / "cache").rglob("cuda"))


@pytest.mark.parametrize("name", ['a"b', "a\\b"])
def test_a_path_that_cannot_be_included_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "k.cu").write_text(GOOD)
    with pytest.raises(TilescopeError, match="which #include cannot name"):
        toolchain.compile(Stage("k", "", lambda p, t: [], source=tmp_path / name / "k.cu"), {}, 90)


def test_a_read_only_checkout_falls_back_to_a_cache_of_the_user(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()  # a folder cannot be made in it, not even by root
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert toolchain._own_cache(tmp_path / "root", "") == tmp_path / "root/.cache"
    assert toolchain._own_cache(blocked, str(tmp_path / "xdg")) == tmp_path / "xdg/tilescope"
    assert toolchain._own_cache(blocked, "relative") == tmp_path / "home/.cache/tilescope"
    monkeypatch.setenv("HOME", str(blocked))
    monkeypatch.setattr(toolchain.tempfile, "tempdir", str(tmp_path))
    mine = toolchain._own_cache(blocked, "")
    assert mine.parent == tmp_path and mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o777)
    toolchain._own_cache.cache_clear()
    assert toolchain._own_cache(blocked, "") != mine, "code would be loaded that anybody can replace"
    monkeypatch.setattr(toolchain, "ROOT", blocked)
    monkeypatch.delenv("TILESCOPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert toolchain.cache_root() == tmp_path / "xdg/tilescope"


def test_what_is_no_nvcc_is_named_in_a_line():
    with pytest.raises(TilescopeError) as e:
        toolchain.compiler("/bin/true")
    assert "/bin/true is not nvcc: asked for --version, it says" in e.value.what and "\n" not in e.value.what


def test_an_error_is_shown_without_the_wrapper_s_name(source):
    with pytest.raises(TilescopeError) as e:
        toolchain.compile(source(GOOD.replace("= 1;", "= 1")), {}, 90)
    assert "k.cu(1): error" in e.value.what and "wrapper" not in e.value.what


def test_no_host_compiler_is_not_the_sources_fault(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TilescopeError, match=r"^there is no C\+\+ compiler .* nvcc needs beside it") as e:
        toolchain.compile(stage.find("tiled2d"), stage.find("tiled2d").configure(), 90)
    assert "nstall g++" in e.value.remedy
