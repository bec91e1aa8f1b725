"""One engine of vLLM's NixlConnector: a real scheduler and the real workers of all its ranks, in one process.

Classes, `__init__`s and `register_kv_caches` are vLLM's. What is made up here is what would come from the rest of vLLM: the
configuration, the KV cache (host memory), requests, block numbers and the step that calls the connector in vLLM's order.
"""

import copy
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

HEADS = 8  # KV heads of the model, over all ranks
GAP = 448  # bytes behind each block of a layer that has gaps; another number than our P's


@dataclass
class Geometry:
    """The KV cache of a whole model. One region per layer; rank r of n holds `block_len / n` bytes of every block."""

    names: list[str]
    block_len: int
    block_size: int = 16
    num_blocks: int = 64


def default_geometry(regions: int, block_len: int) -> Geometry:
    return Geometry([f"model.layers.{i}.self_attn.attn" for i in range(regions)], block_len)


class Cache:
    """One layer's KV cache: the parts of a torch tensor of shape [B, H, N, C] that `register_kv_caches` asks for.

    It is some columns of a matrix of bytes, whose rows are `block_stride` long and may hold other layers or nothing besides.
    """

    device = SimpleNamespace(type="cpu")

    def __init__(self, shape: tuple[int, ...], block_len: int, storage: np.ndarray, offset: int):
        self.shape, self.ndim, self.nbytes = shape, len(shape), shape[0] * block_len
        self.block_len, self.storage = block_len, storage
        self.memory = storage[:, offset : offset + block_len]

    def __getitem__(self, index):
        return SimpleNamespace(is_contiguous=lambda: True, nbytes=self.block_len)

    def stride(self, dim=0):
        assert dim == 0
        return self.storage.shape[1] // self.element_size()

    def element_size(self):
        return 2

    def data_ptr(self):
        return self.memory.ctypes.data

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self.storage.ctypes.data, nbytes=lambda: self.storage.nbytes)


def layers(names: list[str], shape: tuple[int, ...], block_len: int) -> dict[str, Cache]:
    """A cache for each: a memory to itself, one with a gap behind each block, and two that take turns in one, again and again."""

    def storage(row: int) -> np.ndarray:
        return np.zeros((shape[0], row), dtype=np.uint8)

    caches, shared = {}, None
    for number, name in enumerate(names):
        match number % 4:
            case 0:
                place = storage(block_len), 0
            case 1:
                place = storage(block_len + GAP), 0
            case 2:
                shared = storage(2 * block_len)
                place = shared, 0
            case _:
                place = shared, block_len
        caches[name] = Cache(shape, block_len, *place)
    return caches


class Agent:
    """A worker's NIXL agent, with a word about every notification in and out, and about where blocks are said to lie."""

    def __init__(self, agent, rank: int, tell):
        self._agent, self._rank, self._tell = agent, rank, tell

    def __getattr__(self, name):
        return getattr(self._agent, name)

    def get_new_notifs(self):
        notifs = self._agent.get_new_notifs()
        for sender, messages in notifs.items():
            for raw in messages:
                self._tell("notification", rank=self._rank, sender=text(sender), kind=kind(raw), raw=raw.hex(), text=text(raw))
        return notifs

    def send_notif(self, agent, notif_msg=b"", **kwargs):
        self._agent.send_notif(agent, notif_msg=notif_msg, **kwargs)
        name = "heartbeat_sent" if kind(notif_msg) == "heartbeat" else "completion_sent"
        self._tell(name, rank=self._rank, to=text(agent), text=text(notif_msg))

    def prep_xfer_dlist(self, agent, descriptors, **kwargs):
        self._tell("descriptors", rank=self._rank, agent=text(agent), rows=descriptors.tolist())
        return self._agent.prep_xfer_dlist(agent, descriptors, **kwargs)

    def make_prepped_xfer(self, operation, local, local_ids, remote, remote_ids, notif_msg=b"", **kwargs):
        handle = self._agent.make_prepped_xfer(operation, local, local_ids, remote, remote_ids, notif_msg=notif_msg, **kwargs)
        self._tell("read_posted", rank=self._rank, descriptors=len(local_ids), text=text(notif_msg))
        return handle


def kind(raw: bytes) -> str:
    """heartbeat, completion, registration (vLLM's push mode), or foreign: what is in no grammar of vLLM's."""
    try:
        words = raw.decode()
    except UnicodeDecodeError:
        return "foreign"
    if words.startswith("HB:"):
        return "heartbeat"
    if words.startswith("PUSH_REG:"):
        return "registration"
    count = words.rpartition(":")[2]
    return "completion" if ":" in words and count.isascii() and count.isdigit() else "foreign"


def text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")


class Engine:
    def __init__(self, vllm, engine_id: str, tp: int, lease, geometry: Geometry, role: str, enforce: bool, threads: int, tell):
        self.vllm, self.engine_id, self.tp, self.geometry, self.tell = vllm, engine_id, tp, geometry, tell
        self.block_len = geometry.block_len // tp
        config = self._config(lease, role, enforce, threads)
        blocks = self._kv_cache_config()
        self.scheduler = vllm.NixlPullConnectorScheduler(config, engine_id, blocks)
        self.workers, self.caches = [], []
        for rank in range(tp):
            vllm.base_worker.get_tensor_model_parallel_rank = lambda rank=rank: rank
            vllm.base_worker.get_tensor_model_parallel_world_size = lambda: tp
            worker = vllm.NixlPullConnectorWorker(config, engine_id, blocks)
            worker.nixl_wrapper = Agent(worker.nixl_wrapper, rank, tell)
            shape = (geometry.num_blocks, HEADS // tp, geometry.block_size, 0)
            caches = layers(geometry.names, shape, self.block_len)
            worker.register_kv_caches(caches)
            self.workers.append(worker)
            self.caches.append([caches[name] for name in worker.region_names])
        self.scheduler.set_xfer_handshake_metadata(
            {(0, rank): worker.xfer_handshake_metadata for rank, worker in enumerate(self.workers)}
        )
        self.aggregator = vllm.KVOutputAggregator(tp)
        self._handshaken = set()
        self._free = list(range(1, geometry.num_blocks))  # vLLM's block 0 is the null block
        self._end = -1 if role == "kv_producer" else 0

    def _config(self, lease, role: str, enforce: bool, threads: int):
        extra = {"kv_lease_duration": lease, "enforce_handshake_compat": enforce, "num_threads": threads}
        return SimpleNamespace(
            parallel_config=SimpleNamespace(
                tensor_parallel_size=self.tp,
                decode_context_parallel_size=1,
                prefill_context_parallel_size=1,
                pipeline_parallel_size=1,
                data_parallel_index=0,
            ),
            cache_config=SimpleNamespace(
                block_size=self.geometry.block_size,
                cache_dtype="auto",
                enable_prefix_caching=False,
                get_resolved_kv_cache_layout=lambda: self.vllm.KVCacheLayout.LBHNC,
            ),
            kv_transfer_config=SimpleNamespace(
                kv_role=role,
                kv_buffer_device="cpu",
                enable_permute_local_kv=False,
                get_from_extra_config=extra.get,
            ),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
            # Only the compatibility hash sees most of this, so it is the same for every geometry.
            model_config=SimpleNamespace(
                model="kvlease/interop",
                dtype="torch.bfloat16",
                use_mla=False,
                enable_sleep_mode=False,
                get_total_num_kv_heads=lambda: HEADS,
                get_head_size=lambda: 128,
                get_total_num_hidden_layers=lambda: 4,
            ),
            speculative_config=None,
            num_prefill_lookahead_tokens=0,
        )

    def _kv_cache_config(self):
        heads, size = HEADS // self.tp, self.geometry.block_size
        cell, rest = divmod(self.block_len, heads * size)
        if rest or cell == 0:
            raise ValueError(f"a block of {self.block_len} bytes can't hold {heads} heads of {size} tokens")
        spec = self.vllm.FullAttentionSpec(
            block_size=size, num_kv_heads=heads, head_size=128, dtype="bfloat16", state_content_bytes=cell
        )
        assert spec.page_size_bytes == self.block_len
        return self.vllm.KVCacheConfig(
            num_blocks=self.geometry.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[self.vllm.KVCacheGroupSpec(list(self.geometry.names), spec)],
        )

    def allocate(self, count: int) -> list[int]:
        """Block numbers. P's go down and D's go up, so that no two lists are alike."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} are free")
        return [self._free.pop(self._end) for _ in range(count)]

    def free(self, blocks: list[int]):
        """Gives blocks back, and overwrites them as their next owner would."""
        for caches in self.caches:
            for cache in caches:
                cache.memory[blocks] = 0xEE
        self._free.extend(blocks)

    def step(self):
        """One engine step, as in vLLM: the scheduler's metadata, the workers' loads, their results, the aggregate."""
        meta = self.scheduler.build_connector_meta(None)
        # Each rank's own copy: in vLLM it crosses a process boundary.
        for worker in self.workers:
            worker.start_load_kv(copy.deepcopy(meta))
        outputs = [self._output(worker.get_transfer_results()) for worker in self.workers]
        output = self.aggregator.aggregate(outputs).kv_connector_output
        self.scheduler.update_connector_output(output)
        self._tell_handshakes()
        return output

    def _output(self, results):
        output = self.vllm.ModelRunnerOutput(req_ids=[], req_id_to_index={})
        output.kv_connector_output = self.vllm.KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
        )
        return output

    def _tell_handshakes(self):
        for rank, worker in enumerate(self.workers):
            for engine_id, agents in list(worker._remote_agents.items()):
                offset = worker._engine_clock_offset.get(engine_id)
                if offset is None or (rank, engine_id) in self._handshaken:
                    continue
                self._handshaken.add((rank, engine_id))
                names = {f"{pp}/{tp}": text(name) for (pp, tp), name in agents.items()}
                self.tell("handshake_done", rank=rank, engine=engine_id, agents=names, offset=offset)

    def description(self) -> dict:
        """The settings that a foreign peer must know."""
        worker = self.workers[0]
        return {
            "engine_id": self.engine_id,
            "compat_hash": worker.compat_hash,
            "tp": self.tp,
            "port": self.scheduler.side_channel_port,
            "lease_extension": worker._lease_extension,
            "regions": worker.region_names,
            "block_len": self.block_len,
            "block_size": worker.block_size,
            "num_blocks": worker.num_blocks,
            "kv_cache_layout": worker.kv_cache_layout,
            "attn_backend_name": worker.backend_name,
        }

    def shutdown(self):
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()


def request(request_id: str, params: dict, tokens: int):
    """What the scheduler side of the connector reads of a vLLM request."""
    return SimpleNamespace(
        request_id=request_id,
        kv_transfer_params=params,
        prompt_token_ids=[0] * tokens,
        num_prompt_tokens=tokens,
        num_computed_tokens=0,
        status=None,
        get_skip_reading_prefix_cache=lambda: False,
    )


def kv_cache_blocks(block_ids: list[int]):
    """What it reads of vLLM's KVCacheBlocks: one group, nothing of it in the prefix cache."""
    blocks = tuple(SimpleNamespace(block_id=i, block_hash=None, is_null=False) for i in block_ids)
    return SimpleNamespace(blocks=(blocks,), get_unhashed_block_ids_all_groups=lambda: [list(block_ids)])


def now() -> float:
    return time.perf_counter()
