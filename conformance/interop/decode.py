"""The decode role: enqueues requests, beats while they wait, then reads and verifies."""

import json
import sys

import engine
import pattern
from prefill import linger, pause


def decode(args, vllm, tell, log) -> int:
    # With a given geometry D is ready before P grants anything; else P's handshake has to say it.
    params = None if args.regions else read_params(args.params)
    geometry = peer_geometry(vllm, params[0]) if params else engine.default_geometry(args.regions, args.block_len)
    d = engine.Engine(vllm, args.engine_id, args.tp, args.lease, geometry, "kv_consumer", args.enforce, args.threads, tell)
    tell("ready", role="decode", interval=d.scheduler._heartbeat_interval, **d.description())
    queue = enqueue(d, params or read_params(args.params), tell)
    status = run(args, d, queue, vllm, tell)
    if status != 4:
        linger(args, d)
    d.shutdown()
    return status


def enqueue(d: engine.Engine, params: list[dict], tell) -> dict[str, tuple]:
    """D's own request id -> the request, P's parameters, D's blocks. From here on vLLM beats for it."""
    queue = {}
    for given in params:
        count = sum(map(len, given["remote_block_ids"]))
        request = engine.request(f"d-{given['remote_request_id']}", dict(given), count * d.geometry.block_size)
        queue[request.request_id] = (request, given, d.allocate(count))
        d.scheduler.on_new_request(request)
        tell("enqueued", request=given["remote_request_id"])
    return queue


def run(args, d: engine.Engine, waiting: dict[str, tuple], vllm, tell) -> int:
    reading, wrong = {}, 0
    start = engine.now()
    while waiting or reading:
        began = engine.now()
        if began > start + args.timeout:
            tell("timeout", open=sorted(waiting | reading))
            return 4
        if waiting and began >= start + args.hold:
            if args.abort:
                abort(d, waiting, vllm, tell)
            else:
                reading = schedule(d, waiting, tell)
            waiting = {}
        output = d.step()
        for request_id in sorted(output.finished_recving or ()):
            request, given, block_ids = reading.pop(request_id)
            failed = request_id in output.failed_recving
            matches, count = (False, 0) if failed else verify(d, given, block_ids, tell)
            wrong += not matches
            tell("read_landed", request=given["remote_request_id"], outcome="failed" if failed else "one_sided",
                 bytes=count, matches=matches)  # fmt: skip
            request.status = vllm.RequestStatus.FINISHED_STOPPED
            d.scheduler.request_finished(request, (block_ids,))
            d.free(block_ids)
        pause(args, began)
    return 1 if wrong else 0


def schedule(d: engine.Engine, waiting: dict[str, tuple], tell) -> dict[str, tuple]:
    """Their turn has come: vLLM starts the read in the next step."""
    for request, given, block_ids in waiting.values():
        count, asynchronous = d.scheduler.get_num_new_matched_tokens(request, 0)
        assert asynchronous and count == request.num_prompt_tokens, (count, asynchronous)
        d.scheduler.update_state_after_alloc(request, engine.kv_cache_blocks(block_ids), count)
        tell("read_started", request=given["remote_request_id"])
    return waiting


def abort(d: engine.Engine, waiting: dict[str, tuple], vllm, tell):
    for request, given, block_ids in waiting.values():
        request.status = vllm.RequestStatus.FINISHED_ABORTED
        d.scheduler.request_finished(request, ([],))
        d.free(block_ids)
        tell("aborted", request=given["remote_request_id"])


def verify(d: engine.Engine, given: dict, block_ids: list[int], tell) -> tuple[bool, int]:
    """Whether all ranks' blocks of a request hold what P's pattern says, and how many bytes they are."""
    count, first = 0, None
    for rank, caches in enumerate(d.caches):
        for region, cache in enumerate(caches):
            for index, block_id in enumerate(block_ids):
                expected = pattern.decode_block(
                    given["remote_request_id"], rank, d.tp, given["tp_size"], region, index, d.geometry.block_len, engine.HEADS
                )
                count += len(expected)
                different = (cache.memory[block_id] != expected).nonzero()[0]
                if different.size and first is None:
                    first = {"rank": rank, "region": region, "index": index, "byte": int(different[0])}
    if first:
        tell("mismatch", request=given["remote_request_id"], **first)
    return first is None, count


def peer_geometry(vllm, params: dict) -> engine.Geometry:
    """The model of P, as its handshake tells it: both serve one model, so D's configuration is the same."""
    import msgspec
    import zmq

    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.connect(f"tcp://{params['remote_host']}:{params['remote_port']}")
        socket.send(msgspec.msgpack.encode((vllm.GET_META_MSG, 0, 0)))
        payload = msgspec.msgpack.decode(socket.recv_multipart()[0], type=vllm.NixlHandshakePayload)
    meta = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=vllm.NixlAgentMetadata)
    if len(set(meta.block_lens)) != 1:
        raise ValueError(f"all regions must have one block length, P has {meta.block_lens}")
    geometry = engine.default_geometry(len(meta.block_lens), meta.block_lens[0] * params["tp_size"])
    geometry.block_size = meta.block_size
    geometry.names = meta.region_names or geometry.names
    return geometry


def read_params(path: str) -> list[dict]:
    """JSON lines: P's parameters, bare or inside {"kv_transfer_params": ...}; other objects are skipped."""
    found = []
    with sys.stdin if path == "-" else open(path) as lines:
        for line in filter(str.strip, lines):
            value = json.loads(line)
            value = value.get("kv_transfer_params", value)
            if "remote_request_id" in value:
                found.append(value)
    if not found:
        raise ValueError(f"no kv_transfer_params in {path}")
    return found
