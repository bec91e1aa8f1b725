"""Loads vLLM's real NixlConnector without torch and without the rest of vLLM.

The modules in `REAL` come from vLLM's own source, unchanged. Whatever else they import from vLLM, torch or
prometheus_client becomes an empty stub: a name in it is an empty class, enough for annotations, base classes
and imports that the pull connector never calls. The few names that it does call are given in `_fill`.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
REAL = {
    f"{CONNECTOR}.utils",
    f"{CONNECTOR}.v1.base",
    f"{CONNECTOR}.v1.metrics",
    f"{CONNECTOR}.v1.nixl",
    *(
        f"{CONNECTOR}.v1.nixl.{name}"
        for name in (
            "base_scheduler", "base_worker", "connector", "metadata", "pull_scheduler", "pull_worker", "push_scheduler",
            "push_worker", "scheduler", "stats", "tp_mapping", "utils", "worker",
        )
    ),
    "vllm.distributed.nixl_utils",
    "vllm.utils.math_utils",
    "vllm.utils.network_utils",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.outputs",
    "vllm.v1.request",
}  # fmt: skip
STUBBED = ("vllm", "torch", "prometheus_client")


def source_file(module: str) -> str:
    """Where the source distribution keeps a module of `REAL`."""
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if module.endswith(".nixl") else f"{path}.py"


class _Empty(type):
    """A class of which every unknown attribute is another empty class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _empty(name)

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, item):
        return cls


def _empty(name: str) -> type:
    return _Empty(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _empty(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, source: str):
        self.source = source

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] not in STUBBED:
            return None
        if fullname not in REAL:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        file = os.path.join(self.source, source_file(fullname))
        if not os.path.isfile(file):
            raise ImportError(f"{file} is missing: run fetch.py again")
        return importlib.util.spec_from_file_location(fullname, file)

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        module.__path__ = []


class Platform:
    """vLLM's `current_platform`, as on a machine without a GPU: KV caches are host memory, registered as DRAM."""

    device_type = "cpu"

    def is_rocm(self):
        return False

    def is_cpu(self):
        return True

    def get_nixl_supported_devices(self):
        return {}

    def get_nixl_memory_type(self):
        return "DRAM"

    def discover_numa_topology(self):
        return []

    def set_device(self, device):
        pass


class Backend:
    """An attention backend that takes any block size."""

    @staticmethod
    def get_name():
        return "FLASH_ATTN"

    @staticmethod
    def full_cls_name():
        return ("vllm", "FLASH_ATTN")


class Logger(logging.LoggerAdapter):
    """vLLM's logger, with its `_once` methods."""

    def __init__(self, name):
        super().__init__(logging.getLogger(name), {})
        self.debug_once, self.info_once, self.warning_once = self.debug, self.info, self.warning


@contextlib.contextmanager
def _nothing(*args, **kwargs):
    yield


def _fill(version: str, host: str, port: int):
    """Gives the stubs the few names that the connector really calls."""
    import hashlib
    import json

    def give(module, **names):
        vars(importlib.import_module(module)).update(names)

    def hash_factors(items):  # as vllm/config/utils.py has it, which needs torch
        return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()

    give("vllm", __version__=version)
    give("vllm.logger", init_logger=Logger)
    give("vllm.envs", VLLM_NIXL_SIDE_CHANNEL_HOST=host, VLLM_NIXL_SIDE_CHANNEL_PORT=port)
    give("vllm.platforms", current_platform=Platform())
    give(
        "vllm.config",
        get_layers_from_vllm_config=lambda *args: {},
        set_current_vllm_config=_nothing,
    )
    give("vllm.config.utils", hash_factors=hash_factors)
    give("vllm.v1.attention.selector", get_attn_backend=lambda **kwargs: Backend)
    give("vllm.v1.worker.utils", select_common_block_size=lambda size, backends, specs: size)
    give("vllm.utils.torch_utils", get_dtype_size=lambda dtype: 2)
    give("vllm.utils.gpu_sync_debug", gpu_sync_allowed=_nothing)


def load(source: str, version: str, host: str, port: int) -> types.SimpleNamespace:
    """The real classes, read from the unpacked source distribution in `source`."""
    # vLLM sets the first itself before NIXL is imported. Without RDMA the second keeps UCX from crashing in exit().
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    if not os.path.isdir("/sys/class/infiniband"):
        os.environ.setdefault("UCX_MODULES", "^ib")
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    # Before the finder is in place: it must not see the stub torch.
    importlib.import_module("nixl._api")
    sys.meta_path.insert(0, _Finder(source))
    _fill(version, host, port)
    nixl = f"{CONNECTOR}.v1.nixl"
    names = {
        "NixlAgentMetadata": f"{nixl}.metadata",
        "NixlHandshakePayload": f"{nixl}.metadata",
        "GET_META_MSG": f"{nixl}.metadata",
        "NixlPullConnectorScheduler": f"{nixl}.pull_scheduler",
        "NixlPullConnectorWorker": f"{nixl}.pull_worker",
        "KVOutputAggregator": f"{CONNECTOR}.utils",
        "KVCacheConfig": "vllm.v1.kv_cache_interface",
        "KVCacheGroupSpec": "vllm.v1.kv_cache_interface",
        "FullAttentionSpec": "vllm.v1.kv_cache_interface",
        "KVCacheLayout": "vllm.v1.kv_cache_layout",
        "KVConnectorOutput": "vllm.v1.outputs",
        "ModelRunnerOutput": "vllm.v1.outputs",
        "RequestStatus": "vllm.v1.request",
    }
    loaded = {name: getattr(importlib.import_module(module), name) for name, module in names.items()}
    return types.SimpleNamespace(**loaded, base_worker=importlib.import_module(f"{nixl}.base_worker"))
