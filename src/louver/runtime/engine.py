"""What runs a batch of ids: onnxruntime or OpenVINO over a bundle's graphs, or torch. The others are never imported."""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from louver.bundle import Bundle
from louver.errors import BundleError, OptionError, need_extra, unknown
from louver.runtime.schedule import Branch

ENGINES = {
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    "torch": ("train", "torch", "transformers"),
}
"""Engines, with the extra of each and what it imports."""
_KERNELS = 512
"""Kernels that OpenVINO keeps for shapes that were; its own 5,000 would be memory that grows for hours."""


class Engine(Protocol):
    """Runs rectangles of ids."""

    branches: list[Branch]
    """The graphs, by rising limit."""
    workers: int
    """Calls that may run at the same time, each on one core."""

    def run(self, branch: int, ids: np.ndarray, mask: np.ndarray, *, single: bool) -> np.ndarray:
        """Run one call.

        Args:
            branch: index into `branches`.
            ids: (batch, tokens) int64.
            mask: (batch, tokens) int64, 1 = real token.
            single: nothing else runs now, so the call may use every core.

        Returns:
            (batch, outputs) float32.
        """
        ...


def branches_of(bundle: Bundle) -> list[Branch]:
    """Return a bundle's graphs by rising limit; torch has one way for every length."""
    if not bundle.card.onnx:
        return [Branch(float("inf"))]
    return [Branch(graph["limit"] or float("inf"), graph["multiple"]) for graph in bundle.card.onnx["graphs"]]


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OnnxEngine:
    """Graphs of an exported bundle on onnxruntime.

    Throughput runs one-threaded calls side by side on a one-threaded session; a lone call takes a session that uses
    every core. Sessions are made when they are first needed, and share one memory arena that grows in large pieces.
    Plans per shape are off: they would grow with every new length.
    """

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._graphs = bundle.card.onnx["graphs"]
        self._directory = bundle.path / "onnx"
        self.branches = branches_of(bundle)
        self.workers = threads
        self._sessions: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()

    def run(self, branch: int, ids: np.ndarray, mask: np.ndarray, *, single: bool) -> np.ndarray:
        """Run one call; see `Engine`."""
        session = self._session(branch, self.workers if single else 1)
        found: np.ndarray = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        return found

    def _session(self, branch: int, threads: int) -> Any:
        with self._lock:
            if (branch, threads) not in self._sessions:
                import onnxruntime

                _share_arena()
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = threads
                options.inter_op_num_threads = 1
                options.enable_mem_pattern = False
                options.add_session_config_entry("session.use_env_allocators", "1")
                options.log_severity_level = 3
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
                file = self._directory / self._graphs[branch]["file"]
                self._sessions[branch, threads] = onnxruntime.InferenceSession(
                    str(file), options, providers=["CPUExecutionProvider"]
                )
            return self._sessions[branch, threads]


@lru_cache(maxsize=1)
def _share_arena() -> None:
    """Register one arena for all sessions of this process.

    Without an arena every large tensor is fresh pages from the system: 1.8 s instead of 1.2 for 4,096 tokens on one
    thread. An arena that grows by what is asked never joins its pieces again: over 2,000 calls of random shapes
    MiniLM-L3 went from 762 to 1,159 MB. In few, large pieces it stays at 630, and takes no longer.
    """
    import onnxruntime

    info = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    sizes = {
        "arena_extend_strategy": 0,  # in powers of two, up to the last size
        "initial_chunk_size_bytes": 256 << 20,  # pages that are never touched cost nothing
        "initial_growth_chunk_size_bytes": 128 << 20,
        "max_power_of_two_extend_bytes": 128 << 20,
    }
    onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg(sizes))


class OpenVinoEngine:
    """The same graphs on OpenVINO, for processors of Intel's kind: its kernels are made for each shape when it comes.

    Throughput runs one-threaded requests side by side; a lone call takes a model that uses every core. Products stay in
    float32 where the graph's are.
    """

    def __init__(self, bundle: Bundle, threads: int) -> None:
        import openvino

        # Its binding looks numpy up at the first tensor. Two threads that do so at once wait for each other for ever,
        # one with the interpreter's lock and one with the binding's, so one thread does it before there are two.
        openvino.Tensor(np.zeros(1, np.float32)).data.copy()
        self._core = openvino.Core()
        self._files = [bundle.path / "onnx" / graph["file"] for graph in bundle.card.onnx["graphs"]]
        self.branches = branches_of(bundle)
        self.workers = threads
        self._models: dict[tuple[int, bool], Any] = {}
        self._lock = threading.Lock()
        self._own = threading.local()

    def run(self, branch: int, ids: np.ndarray, mask: np.ndarray, *, single: bool) -> np.ndarray:
        """Run one call; see `Engine`."""
        requests = self._own.__dict__  # a request holds its own tensors, so each thread has its own
        key = f"{branch} {single}"
        if key not in requests:
            requests[key] = self._model(branch, alone=single).create_infer_request()
        requests[key].infer({"input_ids": ids, "attention_mask": mask})
        found: np.ndarray = requests[key].get_output_tensor(0).data.copy()
        return found

    def _model(self, branch: int, *, alone: bool) -> Any:
        with self._lock:
            if (branch, alone) not in self._models:
                settings = {
                    "INFERENCE_NUM_THREADS": self.workers,
                    "NUM_STREAMS": 1 if alone else self.workers,
                    "INFERENCE_PRECISION_HINT": "f32",
                    "ENABLE_CPU_PINNING": False,  # several processes of a server would stand on the same cores
                    "CPU_RUNTIME_CACHE_CAPACITY": _KERNELS,
                }
                model = self._core.read_model(str(self._files[branch]))
                self._models[branch, alone] = self._core.compile_model(model, "CPU", settings)
            return self._models[branch, alone]


class TorchEngine:
    """A bundle's transformers files on torch, for bundles that were not exported.

    `threads` is torch's own setting, which holds for the whole process; None leaves it alone.
    """

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        import torch

        from louver.encoders import read_bundle

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._reader = read_bundle(bundle).to(self._device)
        self.branches = branches_of(bundle)
        self.workers = 1  # torch uses its threads for one call
        if threads is not None:
            torch.set_num_threads(threads)
        self._torch = torch

    def run(self, branch: int, ids: np.ndarray, mask: np.ndarray, *, single: bool) -> np.ndarray:
        """Run one call; see `Engine`."""
        torch = self._torch
        with torch.inference_mode():
            found = self._reader(torch.from_numpy(ids).to(self._device), torch.from_numpy(mask).to(self._device))
            result: np.ndarray = found.float().cpu().numpy()
        return result


def engine_of(bundle: Bundle, name: str | None = None) -> str:
    """Return the name of the engine that runs a bundle's files.

    Args:
        bundle: any.
        name: "onnxruntime" or "openvino" for an exported bundle, "torch" for another; None takes onnxruntime or torch.

    Raises:
        BundleError: if the bundle holds neither graphs nor weights.
        MissingExtraError: if the engine is not installed.
        OptionError: if the engine is unknown, or not for this kind of bundle.
    """
    graphs = bool(bundle.card.onnx)
    if not graphs and not any(bundle.path.glob("*.safetensors")):
        raise BundleError(f"{bundle.path} holds neither ONNX graphs nor safetensors; export or write it again")
    name = name or ("onnxruntime" if graphs else "torch")
    if name not in ENGINES:
        raise OptionError(unknown("engine", name, ENGINES))
    if (name == "torch") == graphs:
        kind, remedy = ("exported", "onnxruntime or openvino") if graphs else ("not exported", "torch")
        raise OptionError(f"{bundle.path} is {kind}, and engine {name!r} does not run that; give {remedy}")
    need_extra(*ENGINES[name])
    return name


def open_engine(bundle: Bundle, threads: int | None, name: str | None = None) -> Engine:
    """Return an engine for a bundle's files.

    Args:
        bundle: any.
        threads: cores to use; all that the process may use if None.
        name: see `engine_of`, which says what can be wrong.
    """
    chosen = engine_of(bundle, name)
    if chosen == "torch":
        return TorchEngine(bundle, threads)
    return (OpenVinoEngine if chosen == "openvino" else OnnxEngine)(bundle, threads or usable_cores())
