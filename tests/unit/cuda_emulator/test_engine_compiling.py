"""From a source to a library: errors in the source's own lines, macros from outside, and the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import engine
import numpy as np
import pytest
from engine import CompileError, as_arguments, compile_source

ENGINE = Path(engine.__file__).parents[1]


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ENGINE)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_errors_are_those_of_the_source_and_its_lines() -> None:
    with pytest.raises(CompileError, match=r"kernel.cu:3:\d+: error: .undeclared. was not declared in this scope"):
        compile_source('\nextern "C" __global__ void broken(int* out) {\n    out[0] = undeclared;\n}\n')
    with pytest.raises(CompileError, match=r"kernel.cu:2:\d+: (fatal )?error: .*no_such_file"):
        compile_source('\n#include "no_such_file.h"\n')


def test_a_source_without_kernels_is_refused() -> None:
    with pytest.raises(CompileError, match='no extern "C" __global__ function'):
        compile_source("__global__ void mangled(int* out) {}\ntemplate <class T> __global__ void many(T* out) {}\n")


def test_kernels_are_found_and_templates_and_declarations_are_not() -> None:
    program = compile_source(
        """
        namespace inner { template <class T> __global__ void generic(T* out) {} }
        extern "C" __global__ void declared(int* out);
        #define MAKE(name, type) extern "C" __global__ void __launch_bounds__(32) name##_##type(type* out) { *out = 3; }
        MAKE(fill, int)  // a comment with __shared__ and extern "C" __global__ void nothing() {}
        MAKE(fill, float)
        """
    )
    assert sorted(program.kernels) == ["fill_float", "fill_int"]


def test_what_is_defined_and_what_is_not() -> None:
    program = compile_source(
        """
        #ifdef __CUDA_ARCH__
        #error the host is no device
        #endif
        #if TURRET_EMULATED != 1 || WIDTH != 7
        #error missing
        #endif
        #pragma unroll
        extern "C" __global__ void constants(float* out) { out[0] = WIDTH; out[1] = NAME; }
        """,
        {"WIDTH": "7", "NAME": "(2.5f)"},
    )
    out = np.zeros(2, np.float32)
    program.kernels["constants"].run((1, 1, 1), (1, 1, 1), as_arguments(out))
    assert out.tolist() == [7.0, 2.5]
    for name in ("INFINITY", "NAN", "FLT_MAX", "int32_t(0)", "M_PI"):
        with pytest.raises(CompileError):
            compile_source(f'extern "C" __global__ void k(float* out) {{ out[0] = {name}; }}')


def test_the_same_name_in_two_programs_is_two_kernels() -> None:
    out = np.zeros(1, np.int32)
    programs = [compile_source(f'extern "C" __global__ void same(int* out) {{ out[0] = {i}; }}') for i in (1, 2)]
    for expected, program in ((2, programs[1]), (1, programs[0])):
        program.kernels["same"].run((1, 1, 1), (1, 1, 1), as_arguments(out))
        assert out[0] == expected


COMPILE_AND_RUN = """
    import numpy as np
    from engine import as_arguments, compile_source
    source = '''
        extern "C" __global__ void reversed(int* out) {
            __shared__ int held[64];
            held[threadIdx.x] = __shfl_xor_sync(0xffffffffu, int(threadIdx.x), 1);
            __syncthreads();
            out[threadIdx.x] = held[63 - threadIdx.x];
        }
    '''
    out = np.zeros(64, np.int32)
    kernel = compile_source(source).kernels["reversed"]
    kernel.run((1, 1, 1), (64, 1, 1), as_arguments(out))
    assert out.tolist() == [(63 - i) ^ 1 for i in range(64)]
"""


def test_a_second_process_does_not_compile(tmp_path: Path) -> None:
    run(COMPILE_AND_RUN, TMPDIR=str(tmp_path))
    (cache,) = tmp_path.iterdir()
    libraries = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(libraries) == 2
    run("import subprocess\nsubprocess.run = None\n" + textwrap.dedent(COMPILE_AND_RUN), TMPDIR=str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == libraries


def test_processes_may_compile_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(COMPILE_AND_RUN)]
    environment = {**os.environ, "PYTHONPATH": str(ENGINE), "TMPDIR": str(tmp_path)}
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    (cache,) = tmp_path.iterdir()
    assert len(list(cache.iterdir())) == 2


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / f"turret-cuda-emulator-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    run(COMPILE_AND_RUN, TMPDIR=str(tmp_path))
    assert list(open_to_all.iterdir()) == []


def test_a_library_is_not_kept_under_the_name_of_files_that_have_changed(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ENGINE / "engine", copy / "engine")
    changing = """
        from pathlib import Path
        from engine import CompileError, compile_source
        kernel = 'extern "C" __global__ void k() {}'
        compile_source(kernel)
        header = Path(compile_source.__globals__["__file__"]).parent / "host/bits.h"
        header.write_text(header.read_text() + "// changed")
        compile_source(kernel)
        try:
            compile_source(kernel + "\\n")
        except CompileError as error:
            print(error)
    """
    printed = run(changing, TMPDIR=str(tmp_path), PYTHONPATH=str(copy))
    assert "have changed since this process began: start it again" in printed


def test_without_a_compiler_the_error_says_so(tmp_path: Path) -> None:
    printed = run(
        """
        from engine import CompileError, compile_source
        try:
            compile_source("")
        except CompileError as error:
            print(error)
        """,
        TMPDIR=str(tmp_path),
        PATH=str(tmp_path),
    )
    assert "g++" in printed and "install it" in printed


def test_threads_change_places_without_assembly_too(tmp_path: Path) -> None:
    faulty = """
        from engine import KernelFault
        waits = '''extern "C" __global__ void waits(int* out) {
            if (threadIdx.x < 32) __syncthreads();
            *out = 1;
        }'''
        for _ in range(2):
            try:
                compile_source(waits).kernels["waits"].run((2, 1, 1), (64, 1, 1), as_arguments(None))
            except KernelFault as fault:
                print(fault.kind)
    """
    code = textwrap.dedent(COMPILE_AND_RUN) + textwrap.dedent(faulty) + textwrap.dedent(COMPILE_AND_RUN)
    printed = run(code, TMPDIR=str(tmp_path), TURRET_EMULATOR_SWITCH="portable")
    assert printed.split("\n") == ["illegal address"] * 2 + [""]


def test_a_child_of_a_process_that_launches_can_launch(tmp_path: Path) -> None:
    fork = """
        import os
        child = os.fork()
        if child == 0:
            out[:] = 0
            kernel.run((1, 1, 1), (64, 1, 1), as_arguments(out))
            os._exit(0 if out[0] == 62 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(textwrap.dedent(COMPILE_AND_RUN) + textwrap.dedent(fork)) == "0\n"
