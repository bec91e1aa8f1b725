"""Whether our block maps are vLLM's: every (address, length, device), not only the bytes that were read by them."""

import itertools

from children import Child
from judge import expect


def check(our_role: str, count: int, p: Child, d: Child, d_tp: int, p_tp: int) -> int:
    """Ours has every block of all `count` regions of every P rank exactly where vLLM's own descriptors have it. How many it compared.

    Our P tells where its pool keeps them, which vLLM's D must find by what P's handshake says. Our D tells where it finds those of
    vLLM's P, which has descriptors of them for itself.
    """
    compared = 0
    for d_rank in range(d_tp):
        for p_rank in sources(d_rank, d_tp, p_tp):
            of = max(1, d_tp // p_tp)  # with more ranks than P, each of D's has descriptors of its part of a block
            if our_role == "decode":
                maps, part = d.events("block_map", rank=d_rank, **{"from": p_rank}), (0, 1)
                lists = p.events("descriptors", rank=p_rank, agent="NIXL_INIT_AGENT")
            else:
                maps, part = p.events("block_map", rank=p_rank), (d_rank % of, of)
                agents = {e["agents"].get(f"0/{p_rank}") for e in d.events("handshake_done", rank=d_rank)}
                lists = [e for e in d.events("descriptors", rank=d_rank) if e["agent"] in agents]
            where = f"P rank {p_rank}, D rank {d_rank}"
            regions, expected = [e["region"] for e in maps], list(range(count))
            expect(regions == expected, f"{where}: we told the blocks of regions {regions}, expected {expected}")
            ours = [cut(start, length, e["device"], *part) for e in maps for start, length in e["blocks"]]
            expect(len(ours) >= len(regions), f"{where}: no blocks")
            expect(lists, f"{where}: vLLM has no descriptors")
            for theirs in map(blocks_of, lists):  # one for each handshake: vLLM's D makes a second one before its first read
                wrong = [(at, *both) for at, both in enumerate(itertools.zip_longest(ours, theirs)) if both[0] != both[1]]
                expect(not wrong, f"{where}: {len(wrong)} of {len(theirs)} blocks are not where vLLM says: {wrong[:2]}")
            compared += len(ours)
    return compared


def sources(d_rank: int, d_tp: int, p_tp: int) -> list[int]:
    """The P ranks that a D rank reads from."""
    if d_tp >= p_tp:
        return [d_rank // (d_tp // p_tp)]
    each = p_tp // d_tp
    return list(range(d_rank * each, (d_rank + 1) * each))


def cut(start: int, length: int, device: int, index: int, of: int) -> tuple[int, int, int]:
    """One of `of` parts of a block: heads lie one after the other in it."""
    return start + length // of * index, length // of, device


def blocks_of(event: dict) -> list[tuple[int, int, int]]:
    """vLLM's descriptors: rows of (address, length, device, stride, count), by which NIXL 1.5 means `count` blocks."""
    rows = event["rows"]
    return [(start + n * stride, length, device) for start, length, device, stride, count in rows for n in range(count)]
