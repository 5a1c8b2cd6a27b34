"""nvidia-ml-py for a supervisor of a test, with the GPUs of the file that `NSM_TEST_GPUS` names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fake_nvml import fake_nvml

_now: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    if name == "nvmlInit" or not _now:
        gpus = json.loads(Path(os.environ["NSM_TEST_GPUS"]).read_text())
        _now["module"] = fake_nvml(*gpus)
    return getattr(_now["module"], name)
