"""Variables by which programs know how many threads and how much memory a session has.

By default they look at the machine: with 64 processors and 512 MiB, the buffers of 64 threads or a
heap of a quarter of the machine's memory end a session.
"""

from __future__ import annotations

import os

THREAD_MB = 128
"""Memory of a session for each thread of one program: buffers of BLAS take some 30 MiB, a stack 8,
and a program has more than its threads."""

_THREADS = (
    "GOMAXPROCS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHON_CPU_COUNT",  # Python 3.13 and newer; `multiprocessing.Pool()` takes it
    "RAYON_NUM_THREADS",
)


def limit_variables(memory_mb: int, processors: int | None = None) -> dict[str, str]:
    """Make the variables for a session.

    Args:
        memory_mb: its memory, MiB.
        processors: those that it may use; None for those of this process.
    """
    processors = processors or len(os.sched_getaffinity(0))
    threads = max(1, min(processors, memory_mb // THREAD_MB))
    return {
        **dict.fromkeys(_THREADS, str(threads)),
        "JAVA_TOOL_OPTIONS": java_options(memory_mb, threads),
        # Node's own memory is a few dozen MiB beside the heap.
        "NODE_OPTIONS": f"--max-old-space-size={memory_mb * 3 // 4}",
    }


def java_options(memory_mb: int, threads: int) -> str:
    """Options of every JVM. An old one ignores those that it does not know."""
    return (
        f"-XX:+IgnoreUnrecognizedVMOptions -XX:ActiveProcessorCount={threads} "
        f"-XX:MaxRAM={memory_mb}m -XX:MaxRAMPercentage=60"
    )
