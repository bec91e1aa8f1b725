"""The prefill role: grants leases on blocks full of the pattern, and serves them until each has ended."""

import time

import engine
import pattern


def prefill(args, vllm, tell, log) -> int:
    geometry = engine.default_geometry(args.regions, args.block_len)
    p = engine.Engine(vllm, args.engine_id, args.tp, args.lease, geometry, "kv_producer", True, args.threads, tell)
    tell("ready", role="prefill", **p.description())
    blocks_of = grant(args, p, vllm, tell)
    status = serve(args, p, blocks_of, tell, log)
    p.shutdown()
    return status


def grant(args, p: engine.Engine, vllm, tell) -> dict[str, list[int]]:
    """Takes each request through vLLM's scheduler calls up to its end, and tells the parameters for D."""
    requests, blocks_of = [], {}
    for request_id in args.grant:
        request = engine.request(request_id, {"do_remote_decode": True}, args.blocks * p.geometry.block_size)
        blocks_of[request_id] = p.allocate(args.blocks)
        p.scheduler.on_new_request(request)
        p.scheduler.get_num_new_matched_tokens(request, 0)
        p.scheduler.update_state_after_alloc(request, engine.kv_cache_blocks(blocks_of[request_id]), 0)
        requests.append(request)
    p.step()  # the batch that computes the prompts
    for request in requests:
        block_ids = blocks_of[request.request_id]
        fill(p, request.request_id, block_ids)
        request.num_computed_tokens = request.num_prompt_tokens
        request.status = vllm.RequestStatus.FINISHED_LENGTH_CAPPED
        delayed, params = p.scheduler.request_finished(request, (block_ids,))
        assert delayed, "vLLM would not hold the blocks"
        tell.line({"kv_transfer_params": params})
    return blocks_of


def fill(p: engine.Engine, request_id: str, block_ids: list[int]):
    for rank, caches in enumerate(p.caches):
        for region, cache in enumerate(caches):
            for index, block_id in enumerate(block_ids):
                cache.memory[block_id] = pattern.block(request_id, rank, region, index, p.block_len)


def serve(args, p: engine.Engine, blocks_of: dict[str, list[int]], tell, log) -> int:
    """Steps until all leases have ended, and tells how each moved."""
    consumers = max(1, (args.consumers_tp or args.tp) // args.tp)
    leases = [{} for _ in p.workers]
    still_held, reasons = set(blocks_of), {}
    previous = engine.now()
    deadline = previous + args.timeout
    while still_held:
        began = engine.now()
        if began > deadline:
            tell("timeout", open=sorted(still_held))
            return 4
        output = p.step()
        ended = engine.now()
        expired = log.take_expired()
        for rank, worker in enumerate(p.workers):
            before, leases[rank] = leases[rank], dict(worker._reqs_to_send)
            for request_id, expires in leases[rank].items():
                if request_id not in before:
                    tell("leased", rank=rank, request=request_id, expires=expires)
                elif before[request_id] != expires:
                    tell("renewed", rank=rank, request=request_id, expires=expires)
            for request_id in before.keys() - leases[rank].keys():
                reasons[request_id] = "expired" if request_id in expired else "completed"
                tell("freed", rank=rank, request=request_id, reason=reasons[request_id], expires=before[request_id],
                     now=ended, previous_poll=previous)  # fmt: skip
        for request_id in sorted(output.finished_sending or ()):
            p.free(blocks_of[request_id])
            still_held.discard(request_id)
            tell("finished_sending", request=request_id, reason=reasons.get(request_id), consumers_of_each_rank=consumers)
        previous = began
        pause(args, began)
    linger(args, p)
    return 0


def pause(args, began: float):
    """Until the next step is due."""
    time.sleep(max(0.0, args.step - (engine.now() - began)))


def linger(args, e: engine.Engine):
    """Some steps more, so that what NIXL still has to send or serve gets done."""
    for _ in range(max(1, int(args.linger / args.step))):
        began = engine.now()
        e.step()
        pause(args, began)
