from __future__ import annotations

import subprocess
import sys
from statistics import median

import pytest

import louver


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    code = """
import sys, time
began = time.perf_counter()
import louver
print(time.perf_counter() - began, 'torch' in sys.modules)
"""
    found = [run(code).split() for _ in range(3)]
    assert median(float(seconds) for seconds, _ in found) < 0.3
    assert {flag for _, flag in found} == {"False"}


@pytest.mark.parametrize("module", ["louver.patterns", "louver.text", "louver.decode", "louver.runtime", "louver.cli"])
def test_serving_modules_never_import_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import {module}"
    run(code)
    assert run(f"import sys, {module}; print('torch' in sys.modules)").strip() == "False"


def test_training_modules_say_what_is_missing() -> None:
    code = """
import sys
sys.modules['torch'] = None
try:
    import louver.training
except ImportError as error:
    print(type(error).__name__, error)
"""
    assert "MissingExtraError torch not installed; run: pip install 'louver[train]'" in run(code)


def test_every_public_name_loads() -> None:
    for name in louver.__all__:
        assert getattr(louver, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = louver.nothing
