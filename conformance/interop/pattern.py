"""Bytes that both sides of a read can compute; the same rows as in `conformance/src/engine/pattern.rs`."""

import numpy as np

_U64 = (1 << 64) - 1


def row(name: str, start: int, length: int) -> np.ndarray:
    """Bytes `start..start + length` of the endless row of a name: FNV-1a of the name, then splitmix64 words, little-endian."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & _U64
    first, last = start // 8, -(-(start + length) // 8)
    with np.errstate(over="ignore"):
        mixed = np.uint64(seed) + np.arange(first + 1, last + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    at = start - first * 8
    return mixed.astype("<u8").view(np.uint8)[at : at + length]


def block(request: str, rank: int, region: int, index: int, block_len: int) -> np.ndarray:
    """The `index`-th block of a request in one region of one of P's ranks."""
    return row(f"{request}/{rank}/{region}", index * block_len, block_len)


def decode_block(request: str, rank: int, tp: int, p_tp: int, region: int, index: int, whole: int, heads: int) -> np.ndarray:
    """The same block as D's rank `rank` of `tp` must hold it, when P's ranks hold it by the pattern.

    Said in heads, not in vLLM's offsets, so that a wrong offset shows: a block is its heads one after the other, rank r of n
    holds heads `r * heads / n ..`. `whole` is the block's length over all ranks, in bytes.
    """
    head_len, p_heads, d_heads = whole // heads, heads // p_tp, heads // tp
    parts = []
    for head in range(rank * d_heads, (rank + 1) * d_heads):
        p_block = block(request, head // p_heads, region, index, whole // p_tp)
        parts.append(p_block[head % p_heads * head_len :][:head_len])
    return np.concatenate(parts)
