"""Errors of GPUs: messages of CUDA, ROCm and NVIDIA's tools, and what they mean here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from nsmd.denials.evidence import Kind
from nsmd.denials.naming import names
from nsmd.model.policy import DEVICES, Policy
from nsmd.model.values import Environment

_MESSAGES: dict[Kind, tuple[str, ...]] = {
    "gpu-memory": (
        r"\b(?:CUDA|HIP) (?:error: )?out of memory\b",
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b",
    ),
    "gpu-driver": (
        r"\bDriver/library version mismatch\b",
        r"\bunsupported display driver / cuda driver combination\b",
    ),
    "gpu-lost": (r"\bGPU is lost\b",),
    "no-gpu": (
        r"\bNo (?:CUDA|HIP) GPUs are available\b",
        r"\bno CUDA-capable device is detected\b",
        r"\bFound no NVIDIA driver on your system\b",
        r"\bcouldn't communicate with the NVIDIA driver\b",
        r"\bUnexpected error from cudaGetDeviceCount\b",
    ),
}

GPU_PHRASES: Sequence[tuple[Kind, str]] = [
    (kind, "|".join(texts)) for kind, texts in _MESSAGES.items()
]

GPU_TRIGGERS = ("CUDA", "NVIDIA", "HIP ", "cuda", "GPU", "library version mismatch")
"""A line without any of them is none of these messages."""

GPU_KINDS = frozenset(_MESSAGES)

_USUAL = {f"/dev/{name}" for name in DEVICES}


def said_of_gpus(
    policy: Policy, kinds: Collection[Kind], environments: Sequence[Environment], *, failed: bool
) -> Iterator[str]:
    """Explain messages about GPUs.

    Args:
        kinds: kinds of the evidence.
        environments: environments that the client can use.
        failed: the code failed. Without a GPU, code may ask for one and go on.
    """
    has_gpu = not _USUAL.issuperset(policy.devices)
    if "gpu-memory" in kinds:
        yield (
            "GPU memory ran out: all sessions and programs of this machine share it, and nsm "
            "limits none of them; `nsm top` shows the user who has it"
        )
    if "gpu-driver" in kinds:
        yield (
            "the GPU's driver was upgraded, and the kernel runs the older module until the user "
            "restarts the machine"
        )
    elif "gpu-lost" in kinds:
        yield "the GPU has fallen off its bus; the user has to restart the machine"
    elif "no-gpu" in kinds and has_gpu:
        yield (
            "the GPU of this environment cannot be used: it is gone, or its driver has changed "
            "since the session began. A new session sees what is there now; `nsm doctor` says more"
        )
    elif "no-gpu" in kinds and failed:
        others = sorted(each.name for each in environments if each.shown_devices is not None)
        if others:
            yield f"this environment has no GPU; {names(others)} {_has(others)} one"
        else:
            yield "this environment has no GPU; the user can give it one (`devices` in config.toml)"


def _has(which: Sequence[str]) -> str:
    return "has" if len(which) == 1 else "have"
