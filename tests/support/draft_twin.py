"""Block drafters in float64 numpy, written from the formulas and without any shortcut: attention is computed query by
query and key by key, convolutions row by row, scores token by token."""

from __future__ import annotations

import numpy as np

from dflash_core.config import DraftConfig

Arrays = dict[str, np.ndarray]


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotated(head: np.ndarray, position: int, base: float) -> np.ndarray:
    half = len(head) // 2
    # Rounded to float32, as every implementation of these models has them.
    angle = position * (base ** (-2 * np.arange(half) / len(head))).astype(np.float32).astype(np.float64)
    a, b = head[:half], head[half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


def sees(config: DraftConfig, layer: int, query: int, key: int, start: int, window: int) -> bool:
    """Whether a query sees a key. `start`: positions of the context; `window`: how far back the user lets it look."""
    if config.causal[layer] and key > query:
        return False
    if config.sliding[layer] and abs(query - key) >= config.sliding_window:
        return False
    return not (window and key < start - window)


def attended(config: DraftConfig, w: Arrays, layer: int, fused: np.ndarray, x: np.ndarray, window: int) -> np.ndarray:
    p, start, d, group = f"blk.{layer}.", len(fused), config.key_length, config.head_count // config.head_count_kv
    context = norm(fused, w[p + "attn_norm.weight"], config.rms_eps) if config.heads.taps_normed else fused
    rows = np.concatenate([context, x])
    keys = (rows @ w[p + "attn_k.weight"].T).reshape(len(rows), -1, d)
    values = (rows @ w[p + "attn_v.weight"].T).reshape(len(rows), -1, d)
    queries = (x @ w[p + "attn_q.weight"].T).reshape(len(x), -1, d)
    out = np.zeros_like(queries)
    for j in range(len(x)):
        seen = [at for at in range(len(rows)) if sees(config, layer, start + j, at, start, window)]
        for head in range(config.head_count):
            q = rotated(
                norm(queries[j, head], w[p + "attn_q_norm.weight"], config.rms_eps), start + j, config.rope_freq_base
            )
            ks = [norm(keys[at, head // group], w[p + "attn_k_norm.weight"], config.rms_eps) for at in seen]
            scores = np.array([q @ rotated(k, at, config.rope_freq_base) for k, at in zip(ks, seen)]) / np.sqrt(d)
            weights = np.exp(scores - scores.max())
            out[j, head] = weights / weights.sum() @ values[seen, head // group]
            if config.heads.gated:
                out[j, head] *= np.log1p(np.exp(x[j] @ w[p + "attn_gate.weight"][head]))
    return out.reshape(len(x), -1) @ w[p + "attn_output.weight"].T


def convolved(config: DraftConfig, w: Arrays, name: str, normed: np.ndarray, x: np.ndarray, side: int) -> np.ndarray:
    """`x` through one side of a pair; its coefficients come from `normed`."""
    if config.heads.conv is None:
        return x
    base, taps, group = w[name + "_conv_base"], config.heads.conv.kernel, config.heads.conv.group
    given = (normed @ w[name + "_conv_proj.weight"].T).reshape(len(x), 2, taps, -1)
    out = np.zeros_like(x)
    for row in range(len(x)):
        for tap in range(taps):
            if row - tap >= 0:
                out[row] += (base[side, tap] + np.repeat(given[row, side, tap], group)) * x[row - tap]
    return out


def hidden_rows(config: DraftConfig, w: Arrays, features: np.ndarray, noise: np.ndarray, window: int = 0) -> np.ndarray:
    """Hidden rows (block, hidden) after features (n, captured * hidden); `noise`: the block's embeddings, scaled."""
    w = {name: np.asarray(values, np.float64) for name, values in w.items()}
    features, width = features.astype(np.float64), config.embedding_length
    if config.heads.taps_normed:
        taps = [features[:, width * at : width * (at + 1)] for at in range(len(config.target_layers))]
        normed = [norm(tap, w[f"enc.aux_norm.{at}.weight"], config.rms_eps) for at, tap in enumerate(taps)]
        features = np.concatenate(normed, axis=1)
    fused = norm(features @ w["fc.weight"].T, w["enc.output_norm.weight"], config.rms_eps)
    h = noise.astype(np.float64)
    for layer in range(config.block_count):
        p = f"blk.{layer}."
        n = norm(h, w[p + "attn_norm.weight"], config.rms_eps)
        mixed = attended(config, w, layer, fused, convolved(config, w, p + "attn", n, n, 0), window)
        h = h + convolved(config, w, p + "attn", n, mixed, 1)
        n = norm(h, w[p + "ffn_norm.weight"], config.rms_eps)
        m = convolved(config, w, p + "ffn", n, n, 0)
        gate = m @ w[p + "ffn_gate.weight"].T
        out = (gate / (1 + np.exp(-gate)) * (m @ w[p + "ffn_up.weight"].T)) @ w[p + "ffn_down.weight"].T
        h = h + convolved(config, w, p + "ffn", n, out, 1)
    return norm(h, w["output_norm.weight"], config.rms_eps)


def drafted(
    config: DraftConfig, w: Arrays, embedding: np.ndarray, head: np.ndarray, features: np.ndarray, anchor: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hidden rows (depths, hidden) and logits (depths, vocab); `embedding` and `head` are the target's."""
    assert config.mask_token_id is not None, "a mask token"
    block = [anchor] + [config.mask_token_id] * (config.block_size - 1)
    noise = w.get("token_embd.weight", embedding)[block].astype(np.float64) * config.heads.embedding_scale
    rows = hidden_rows(config, w, features, noise)[-config.depths :]
    logits = rows @ w.get("output.weight", head).astype(np.float64).T * config.heads.logit_scale
    if config.heads.softcap:
        logits = config.heads.softcap * np.tanh(logits / config.heads.softcap)
    if "d2t" in w:
        full = np.full((len(logits), len(embedding)), -np.inf)
        full[:, w["d2t"]] = logits
        logits = full
    return rows, logits


def pair_scores(config: DraftConfig, w: Arrays, row: np.ndarray, before: int) -> np.ndarray:
    """What the token `before` a position adds to the scores of all tokens there, (vocab,); `row`: its hidden row."""
    vocab = config.vocab_size or 0
    if config.heads.selector:
        gate = w["selector_predecessor.weight"][before].astype(np.float64) * (w["selector_hidden.weight"] @ row)
        return w["selector_successor.weight"] @ gate
    if config.heads.markov:
        bias = w["markov_w2.weight"] @ w["markov_w1.weight"][before].astype(np.float64)
        full = np.zeros(vocab)
        full[w["d2t"] if "d2t" in w else slice(None)] = bias
        return full
    return np.zeros(vocab)


def greedy_path(config: DraftConfig, w: Arrays, rows: np.ndarray, logits: np.ndarray, anchor: int) -> list[int]:
    """The best token of each depth after the one before it; a selector looks at its best few alone."""
    path = [anchor]
    for row, logit in zip(rows, logits):
        scores = logit + pair_scores(config, w, row, path[-1])
        if config.heads.selector:
            out = np.argsort(-logit, kind="stable")[config.heads.selector.top_k :]
            scores[out] = -np.inf
        path.append(int(scores.argmax()))
    return path[1:]


def confidence(w: Arrays, row: np.ndarray, before: int) -> float:
    """The confidence head's value for a position after the token `before`."""
    weight = w["conf_proj.weight"][0].astype(np.float64)
    joined = np.concatenate([row, w["markov_w1.weight"][before]])[: len(weight)]
    return float(1 / (1 + np.exp(-(weight @ joined + w.get("conf_proj.bias", np.zeros(1))[0]))))
