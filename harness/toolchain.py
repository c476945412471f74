"""nvcc and nvdisasm as a matched pair: from a stage and its tunables to a Binary, through a cache.

The same wrapper source and flags serve the simulator, PyCUDA's SourceModule and Nsight Compute, so that all of them
speak of the same machine code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from . import cubin as elf
from . import preflight
from .errors import NotCompiled, TilescopeError
from .stage import Stage

ROOT = Path(__file__).resolve().parent.parent
LEAST_NVDISASM = (13, 5)
"""Before 13.4 its JSON has no source lines, before 13.5 no comma between a load's register and its address."""
CACHE_FORMAT = "2"


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction as nvdisasm prints it. `pc` in bytes from the function's start."""

    pc: int
    word: int  # the 128-bit encoding
    predicate: str  # '', '@P0', '@!UP2', ...
    opcode: str  # with modifiers: 'LDG.E.128'
    operands: tuple[str, ...]
    file: str
    line: int

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".", 1)[0]

    @property
    def text(self) -> str:
        return " ".join(x for x in (self.predicate, self.opcode, ", ".join(self.operands)) if x)


@dataclass(eq=False)
class Kernel:
    """A function of a Binary: what the ELF file says of it, its instructions, and what ptxas said of spills (bytes)."""

    function: elf.Function
    instructions: list[Instruction]
    spill_stores: int = 0
    spill_loads: int = 0

    @property
    def name(self) -> str:
        return self.function.name

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the machine code alone: equal for equal instructions, whatever paths the line table holds."""
        return _code_hash(self.function)


@dataclass
class Binary:
    """A compiled stage. `arch` is the compute capability times ten; `sources` maps file name to its text."""

    arch: int
    cubin: bytes
    kernels: dict[str, Kernel]
    sources: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    compiler: str = ""
    disassembler: str = ""
    ptxas: str = ""

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the machine code of all kernels, in name order."""
        return _joint_hash({name: k.hash for name, k in self.kernels.items()})

    def kernel(self, name: str) -> Kernel:
        """A kernel by name. Raises TilescopeError naming those there are."""
        if name not in self.kernels:
            raise TilescopeError(
                f"the compiled source has no kernel {name}; it has {', '.join(self.kernels) or 'none'}.",
                'Declare it extern "C" __global__.',
            )
        return self.kernels[name]

    def source_line(self, file: str, line: int) -> str:
        """The text of a source line, stripped, or nothing where the source is not at hand."""
        lines = self.sources.get(file, "").splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def move(self, old: str, new: str) -> None:
        """Let source lines in folder `old`, where this was compiled, stand for the same files in `new`."""
        for kernel in self.kernels.values():
            kernel.instructions = [
                replace(i, file=new + i.file[len(old) :]) if i.file.startswith(old + os.sep) else i
                for i in kernel.instructions
            ]

    def portable_cubin(self) -> bytes:
        """The cubin with the folders of its line table blotted out, those of CUDA's own headers too, byte for byte as long."""
        code = self.cubin
        for folder in sorted({str(Path(path).parent).encode() for path in self.sources}, key=len, reverse=True):
            if len(folder) > 1:
                code = code.replace(folder, _blot(folder))
        return re.sub(rb"(?<=[\0\1])/[\w.+@~ -]+/[\w.+@~ /-]+(?=\0)", lambda m: _blot(m[0]), code)

    def sass(self) -> str:
        """The disassembly as text: address, instruction, source line."""
        out = []
        for kernel in self.kernels.values():
            out.append(f"// {kernel.name}: {kernel.function.registers} registers, sha256 {kernel.hash}")
            out += [f"/*{i.pc:05x}*/ {i.text} ;  // {Path(i.file).name}:{i.line}" for i in kernel.instructions]
        return "\n".join(out) + "\n"


def _blot(folder: bytes) -> bytes:
    return b"." + b"/" * (len(folder) - 1)


def _code_hash(function: elf.Function) -> str:
    return hashlib.sha256(b"".join(w.to_bytes(16, "little") for w in function.words)).hexdigest()


def _joint_hash(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{name}:{h}\n" for name, h in sorted(hashes.items())).encode()).hexdigest()


def machine_code_hash(cubin: bytes) -> str:
    """Binary.hash of a cubin, without a disassembler."""
    return _joint_hash({name: _code_hash(f) for name, f in elf.read(cubin).items()})


@dataclass(frozen=True)
class Toolchain:
    """Paths of nvcc and nvdisasm, and the lines in which they state their versions."""

    nvcc: Path
    nvdisasm: Path
    nvcc_version: str
    nvdisasm_version: str


def packaged(tool: str) -> Path | None:
    """A tool inside NVIDIA's PyPI packages on this interpreter's path."""
    for folder in map(Path, sys.path):
        for path in sorted(folder.glob(f"nvidia/*/bin/{tool}")):
            if os.access(path, os.X_OK):
                return path
    return None


def _version(tool: Path, name: str) -> str:
    remedy = "Run `make setup` again, or choose another with NVCC=."
    try:
        out = subprocess.run([tool, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise TilescopeError(f"{tool} does not run: {e}.", remedy) from e
    m = re.search(r"release [\d.]+, V([\d.]+)", out.stdout)
    if out.returncode or not m:
        said = next((line.strip() for line in (out.stderr + out.stdout).splitlines() if line.strip()), "nothing")
        raise TilescopeError(f"{tool} is not {name}: asked for --version, it says: {said[:150]}", remedy)
    return m[1]


def check(nvcc: str | None) -> None:
    """Refuse an NVCC= that is no compiler, before anything that a machine may lack is looked for. Raises TilescopeError."""
    if nvcc:
        compiler(nvcc)


@cache
def compiler(nvcc: str | None = None) -> tuple[Path, str]:
    """(path, version) of nvcc: the one given, else the packaged one, else the one on PATH. Raises TilescopeError if there is none."""
    if nvcc:
        path = Path(shutil.which(nvcc) or nvcc).expanduser()
        if not path.is_file():
            raise TilescopeError(f"NVCC={nvcc}: no such compiler.", "Give the path of an nvcc, or leave NVCC out.")
    else:
        found = packaged("nvcc") or shutil.which("nvcc")
        if not found:
            raise TilescopeError(
                "no CUDA compiler: nvcc is not installed.", "Run `make setup`, or give NVCC=/path/to/nvcc."
            )
        path = Path(found)
    return path, _version(path, "nvcc")


@cache
def tools(nvcc: str | None = None) -> Toolchain:
    """The compiler and a disassembler at least as new, which reads what the compiler writes.

    nvcc: a path, or None for the packaged one, else the one on PATH. Raises TilescopeError where there is none.
    """
    path, version = compiler(nvcc)
    beside = path.resolve().parent / "nvdisasm"
    candidates = [p for p in (packaged("nvdisasm"), beside, shutil.which("nvdisasm")) if p and Path(p).is_file()]
    if not candidates:
        raise TilescopeError(
            "no disassembler: nvdisasm is not installed.", "Run `make setup`, or pip install nvidia-cuda-nvdisasm."
        )
    best = max(((_version(Path(p), "nvdisasm"), Path(p)) for p in candidates), key=lambda v: _numbers(v[0]))
    if _numbers(best[0]) < LEAST_NVDISASM or _numbers(best[0])[:1] < _numbers(version)[:1]:
        raise TilescopeError(
            f"nvdisasm {best[0]} ({best[1]}) is too old: its JSON lacks source lines, or it cannot read nvcc {version}'s code.",
            "pip install nvidia-cuda-nvdisasm; it reads the code of older compilers too.",
        )
    return Toolchain(path, best[1], version, best[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def cache_root() -> Path:
    """Where compiled stages and the engine are kept: TILESCOPE_CACHE, else the first place here that can be written."""
    chosen = os.environ.get("TILESCOPE_CACHE")
    return Path(chosen) if chosen else _own_cache(ROOT, os.environ.get("XDG_CACHE_HOME", ""))


@cache
def _own_cache(root: Path, xdg: str) -> Path:
    """.cache in the checkout; where that is read-only, the user's cache folder; else a temporary one."""
    user = Path(xdg) if os.path.isabs(xdg) else Path(os.path.expanduser("~/.cache"))
    for folder in (root / ".cache", user / "tilescope"):
        if not folder.is_absolute():  # there is no home
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    shared = Path(tempfile.gettempdir()) / f"tilescope-{os.getuid()}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return shared  # nobody else can put code there
        return Path(tempfile.mkdtemp(prefix="tilescope-"))
    except OSError as e:
        raise TilescopeError(
            f"no folder to keep compiled code in: {e}.", "Set TILESCOPE_CACHE to a writable folder."
        ) from e


def wrapper(stage: Stage) -> str:
    """The source handed to nvcc: it includes the stage's real file, so that lines and Nsight Compute find it."""
    return f'#include "{stage.source}"\n'


def flags(arch: int, tunables: Mapping[str, int]) -> tuple[str, ...]:
    """Compiler flags for an architecture and tunables; order is fixed, since it is part of the cache key."""
    return (f"-arch=sm_{arch}", "-std=c++17", "-lineinfo", *(f"-D{k}={v}" for k, v in tunables.items()))


def sources(path: Path) -> dict[str, str]:
    """The text of a file and of everything it includes with quotes, by path. Raises TilescopeError if one is missing."""
    found: dict[str, str] = {}
    todo = [path]
    while todo:
        file = todo.pop()
        if str(file) in found:
            continue
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise TilescopeError(f"cannot read source {file}: {e}.") from e
        found[str(file)] = text
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.M):
            beside = Path(os.path.normpath(file.parent / name))
            if beside.exists():
                todo.append(beside)
    return found


def compile(stage: Stage, tunables: Mapping[str, int], arch: int, nvcc: str | None = None) -> Binary:
    """Compile a stage for an architecture (compute capability times ten), or take it from the cache.

    Where there is no compiler or no disassembler, a cache carried here from another machine and named by TILESCOPE_CACHE
    will do: its entries are found by what was compiled, whatever folder that was in. Raises TilescopeError with nvcc's own
    message and line where the source does not compile.
    """
    if arch < stage.least_arch:
        raise TilescopeError(
            f"{stage.name} needs sm_{stage.least_arch} or newer; DEVICE is sm_{arch}.", "Choose another DEVICE."
        )
    if odd := set(str(stage.source)) & set('"\\\n'):
        raise TilescopeError(
            f"the path of {stage.source.name} holds {' '.join(map(repr, sorted(odd)))}, which #include cannot name.",
            "Move it to a folder without such characters.",
        )
    texts = sources(stage.source)
    options = flags(arch, tunables)
    folder = stage.source.parent
    what = _key(CACHE_FORMAT, options, sorted((os.path.relpath(path, folder), text) for path, text in texts.items()))
    try:
        chain = tools(nvcc)
    except TilescopeError:
        entry = None if nvcc else _carried(what)
        if entry is None:
            raise
    else:
        entry = cache_root() / "binaries" / f"{what}-{_key(chain.nvcc_version, chain.nvdisasm_version, wrapper(stage))}"
        if not (entry / "made.json").exists():
            _compile_into(entry, stage, options, chain)
    made = json.loads((entry / "made.json").read_text())
    code = (entry / "kernel.cubin").read_bytes()
    binary = assemble(code, (entry / "sass.json").read_text(), (entry / "ptxas.txt").read_text())
    if made["folder"] != str(folder):
        binary.move(made["folder"], str(folder))
    binary.sources = texts
    binary.flags = options
    binary.compiler = made["nvcc"]
    binary.disassembler = made["nvdisasm"]
    return binary


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _carried(what: str) -> Path | None:
    """The entry for a source and its flags, made by whatever tools, in the cache that TILESCOPE_CACHE names; or None."""
    if not os.environ.get("TILESCOPE_CACHE"):
        return None
    return max((e.parent for e in (cache_root() / "binaries").glob(f"{what}-*/made.json")), default=None)


def _compile_into(entry: Path, stage: Stage, options: tuple[str, ...], chain: Toolchain) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".compile-", dir=entry.parent))
    except OSError as e:
        raise TilescopeError(
            f"cannot write the cache {entry.parent}: {e.strerror}.", "Set TILESCOPE_CACHE to a writable folder."
        ) from e
    try:
        (work / "wrapper.cu").write_text(wrapper(stage))
        host = preflight.host_compiler()
        chosen = ("-ccbin", host) if host else ()
        # nvcc hands the paths that it is given, and its own, to a shell, which expands a $ in them
        nvcc, link = chain.nvcc.absolute(), work / "cuda"
        if "$" in str(nvcc):
            link.symlink_to(nvcc.parent.parent)
            nvcc = Path(link.name, nvcc.parent.name, nvcc.name)
        command = [nvcc, *options, *chosen, "-Xptxas=-v", "-cubin", "-o", "kernel.cubin", "wrapper.cu"]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=work)
        if run.returncode:
            if _lacks_compiler(run.stderr) and (found := preflight.compiler_problems(preflight.gather(work))):
                raise TilescopeError(found[0].what, found[0].remedy)
            raise (NotCompiled if _refuses(run.stderr) else TilescopeError)(
                f"{stage.source.name} does not compile:\n{first_errors(run.stderr)}", _remedy(run.stderr)
            )
        link.unlink(missing_ok=True)
        (work / "ptxas.txt").write_text(run.stderr)
        (work / "sass.json").write_text(disassemble((work / "kernel.cubin"), chain))
        made = {"nvcc": chain.nvcc_version, "nvdisasm": chain.nvdisasm_version, "folder": str(stage.source.parent)}
        (work / "made.json").write_text(json.dumps(made))
        try:
            os.replace(work, entry)
        except OSError:
            if not entry.exists():  # else another run compiled the same thing meanwhile
                raise
    except OSError as e:
        raise TilescopeError(
            f"cannot compile {stage.name}: {e}.", "Check the disk, or set TILESCOPE_CACHE to another folder."
        ) from e
    finally:
        shutil.rmtree(work, ignore_errors=True)


def first_errors(log: str) -> str:
    lines = [
        line
        for line in log.splitlines()
        if ("error" in line.lower() or "fatal" in line.lower()) and "in the compilation of" not in line
    ] or log.splitlines()
    return "\n".join(f"  {line}" for line in lines[:8])


def _lacks_compiler(log: str) -> bool:
    """Whether nvcc complains of the C++ compiler that it needs beside it, and not of the source."""
    return (
        "gcc: not found" in log
        or "Failed to preprocess host compiler" in log
        or "No such file or directory" in log
        and "gcc" in log
    )


def _refuses(log: str) -> bool:
    """Whether an error is of the source: nvcc names its line, or ptxas says `error`. Warnings and what ptxas -v tells do not count, nor
    its `fatal`, which is of files and memory."""
    return re.search(r"\.cuh?\(\d+\): (?:catastrophic )?error\b|^ptxas .*\berror\b", log, re.M) is not None


def _remedy(log: str) -> str:
    if "unsupported GNU version" in log or "unsupported clang version" in log:
        return "The host compiler is too new for this nvcc: install an older g++ and put it first on PATH."
    if _lacks_compiler(log):
        return "nvcc needs a C++ host compiler: install g++."
    return "Correct the source, or the tunables."


def disassemble(path: Path, chain: Toolchain | None = None) -> str:
    """nvdisasm's JSON for a cubin file, line table included. Raises TilescopeError where it cannot read it."""
    chain = chain or tools()
    run = subprocess.run([chain.nvdisasm, "-json", "-g", path], capture_output=True, text=True)
    if run.returncode:
        raise TilescopeError(f"nvdisasm cannot read {path}: {run.stderr.strip()[:300]}")
    return run.stdout


def load(path: Path, sass: str | None = None) -> Binary:
    """A Binary from a cubin file, compiled on whatever machine; `sass` is its disassembly where that is at hand."""
    try:
        code = path.read_bytes()
    except OSError as e:
        raise TilescopeError(f"cannot read {path}: {e.strerror}.") from e
    return assemble(code, sass if sass is not None else disassemble(path))


def assemble(cubin: bytes, disassembly: str, ptxas: str = "") -> Binary:
    """Join what the ELF file and nvdisasm's JSON say of the same code into a Binary."""
    head, functions, table = (*json.loads(disassembly), {})[:3]
    folders, files = table.get("directories", []), table.get("files", [])
    names = [os.path.join(folders[f["dir-idx"]] if f["dir-idx"] < len(folders) else "", f["file"]) for f in files]
    version = head["SM"]["version"]
    kernels = {}
    read = elf.read(cubin)
    for listing in functions:
        name = listing["function-name"]
        if name not in read:
            continue
        file, line, instructions = "", 0, []
        for n, item in enumerate(listing["sass-instructions"]):
            if "source-line" in item:
                index = item.get("source-file-id", -1)
                file = names[index] if 0 <= index < len(names) else ""
                line = item["source-line"]
            word = read[name].words[n]
            predicate, operands = item.get("predicate", ""), split_operands(item.get("operands", ""))
            if predicate and not predicate.startswith("@"):  # nvdisasm's JSON takes the PR of P2R and R2P for the guard
                at = 0 if item["opcode"].startswith("R2P") else 1
                predicate, operands = _guard(word), (*operands[:at], predicate, *operands[at:])
            instructions.append(
                Instruction(
                    pc=n * elf.INSTRUCTION_BYTES,
                    word=word,
                    predicate=predicate,
                    opcode=item["opcode"],
                    operands=operands,
                    file=file,
                    line=line,
                )
            )
        kernels[name] = Kernel(read[name], instructions, *_spills(ptxas, name))
    return Binary(arch=version["major"] * 10 + version["minor"], cubin=cubin, kernels=kernels, ptxas=ptxas)


def _guard(word: int) -> str:
    """The guard predicate as text, from its bits: 12 to 14 its number (7: always), 15 its negation."""
    number, negated = word >> 12 & 7, word >> 15 & 1
    return "" if number == 7 and not negated else f"@{'!' if negated else ''}P{'T' if number == 7 else number}"


def _spills(ptxas: str, kernel: str) -> tuple[int, int]:
    """Bytes of spill stores and loads that `ptxas -v` reports for a kernel."""
    m = re.search(
        rf"Function properties for {re.escape(kernel)}\s*\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads", ptxas
    )
    return (int(m[1]), int(m[2])) if m else (0, 0)


def split_operands(text: str) -> tuple[str, ...]:
    """Split at the commas outside brackets."""
    return tuple(x.strip() for x in re.split(r",(?![^\[(]*[\])])", text) if x.strip())
