"""What the server costs, and what an agent's turns wait for.

python -m tools.bench.serving [--device cuda] [--folder FOLDER --model 27b] [--drafting plain "tree 15"] [--seconds 110]

Prints a JSON object a line, and begins nothing after --seconds. `cost`: processor time per step, from the first token
of an answer to its last, for recorded steps that come at a fixed rate: of the thread of the decoder and of all others,
as `ask` runs it and behind the server. `reuse`: seconds to the first token of a turn behind a long prompt, as a client
on a process of its own measures it: directly after the turn before, and with a request of another conversation between;
`allowed` is 0.6 s and the time that reading the turn's new tokens takes. `overhead`: the same prompts by the decoder
alone, as `ask` runs it, and by the server, in turn: bars are a `rate_ratio` of 0.97 and `first_more_ms` of 5.
`rate_ratio` is the median over pairs of neighbours, with its quartiles in `between`; `decoder_ratio` the same by the
clock of the decoder's thread, so the rest is what carries text to the client, and `client_us` processor time of the
client per token. An answer of the demo pair on a card takes 0.2 s: take 21 rounds. Without --folder the demo pair.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from dflash_core.bench.family_models import MODELS
from dflash_core.conversation import Conversation
from dflash_core.engine import Engine
from dflash_core.knobs import Knobs
from dflash_tui.application import collector
from dflash_tui.application.background import DecoderUse
from dflash_tui.application.requests import Requests
from dflash_tui.server.sampling import Defaults
from dflash_tui.server.service import Served
from dflash_tui.server.serving import ServerBeside
from dflash_tui.server.settings import ServerSettings
from tools.bench.engines import synthetic_or_demo
from tools.bench.fed_steps import FedSteps, recorded
from tools.bench.tool import run_tool

QUESTIONS = ("What is 12 plus 7?", "Tell me a story.", "Tell me about red.", "Write a poem about rain.")
SIDE = 300  # characters of the request in between
ANSWER = 16  # tokens of the answers of which only the first counts
CONTEXT_DEMO = 2048
FED = (1_500.0, 5_000.0)  # steps a second
FED_STEPS = 1_000
ENGINE_THREAD = "dflash-engine"  # of the server


def client(url: str) -> None:
    """Send the requests that come as lines; write what was measured of each as a line."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    for line in sys.stdin:
        connection = http.client.HTTPConnection(host, int(port))
        connection.connect()  # an agent keeps its connection
        began = time.perf_counter()
        used = time.process_time()
        connection.request("POST", "/v1/chat/completions", line.encode(), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(response.read().decode())
        times, last = list[float](), dict[str, Any]()
        for data in response:
            if data.startswith(b"data: {"):
                last = json.loads(data[6:])
                if any(one["delta"].get("content") for one in last["choices"]):
                    times.append(time.perf_counter() - began)
        connection.close()
        usage, used = last["usage"], time.process_time() - used
        found = {
            "first_s": times[0], "rate": _rate(usage["completion_tokens"], times),
            "own_rate": last["timings"]["predicted_per_second"], "client_us": used / usage["completion_tokens"] * 1e6,
            "prompt": usage["prompt_tokens"], "cached": usage["prompt_tokens_details"]["cached_tokens"],
        }  # fmt: skip
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def _rate(tokens: int, times: Sequence[float]) -> float:
    """Tokens a second after the first; a short answer may come at once."""
    return (tokens - 1) / max(times[-1] - times[0], 1e-9)


class Bench:
    """One engine, served, and its client."""

    def __init__(self, engine: Engine, process: subprocess.Popen[str], until: float) -> None:
        """`until`: when `perf_counter` is there, nothing more begins."""
        self._engine, self._process, self._until = engine, process, until

    @property
    def late(self) -> bool:
        """No time is left."""
        return time.perf_counter() > self._until

    def ask(self, messages: Sequence[dict[str, str]], tokens: int, drafting: str = "plain") -> dict[str, Any]:
        """What the client measures."""
        body = {
            "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "dflash": {"drafting": drafting},
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def directly(self, question: str, tokens: int, drafting: str = "plain") -> dict[str, float]:
        """The same without the server. What is stored of the prompt is forgotten before."""
        target = self._engine.target
        conversation = Conversation(self._engine, target.tokenizer, target.template)
        began = time.perf_counter()
        knobs = Knobs(drafting=drafting, max_tokens=tokens, ignore_eos=True)
        turn = conversation.ask(question, knobs)
        times = [time.perf_counter() - began for piece in turn if piece.text or piece.thinking]
        assert turn.report is not None
        found = {"first_s": times[0], "rate": _rate(len(turn.report.tokens), times)}
        return found | {"own_rate": turn.report.stats.timings()["predicted_per_second"]}

    def forget(self) -> None:
        """Read the next prompt from its beginning. While nothing runs."""
        self._engine.reset()
        if self._engine.snapshots is not None:
            self._engine.snapshots.store.clear()

    def pairs(
        self, question: str, tokens: int, drafting: str, rounds: int
    ) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """What the decoder alone and the server take for a question, in turn, after a round that warms up."""
        alone, served = list[dict[str, float]](), list[dict[str, float]]()
        for at in range(rounds + 1):
            if at > 1 and self.late:
                break
            for one in (alone, served) if at % 2 else (served, alone):
                self.forget()
                if one is alone:
                    one.append(self.directly(question, tokens, drafting))
                else:
                    one.append(self.ask([{"role": "user", "content": question}], tokens, drafting))
        return alone[1:], served[1:]

    def cost(self, drafting: str, rate: float, rounds: int) -> dict[str, Any]:
        """Medians over the rounds, in microseconds of processor time per step."""
        events = recorded(self._engine, QUESTIONS[1], Knobs(drafting=drafting, max_tokens=100), FED_STEPS)
        with FedSteps(self._engine, events, rate) as fed:
            self.pairs(QUESTIONS[0], 100, drafting, rounds)
        found: dict[str, Any] = {"measured": "cost", "drafting": drafting, "steps_per_s": rate}
        for name in ("ask", "served"):
            runs = [run for run in fed.took if (run.thread == ENGINE_THREAD) == (name == "served")][1:]
            for part, seconds in (("decoder", [run.own_s for run in runs]), ("others", [run.others_s for run in runs])):
                found[f"{name}_{part}_us"] = round(median(seconds) / FED_STEPS * 1e6, 1)
        return found

    def overhead(self, drafting: str, rounds: int, tokens: int) -> Iterator[dict[str, Any]]:
        """Medians over the rounds, question by question: the decoder alone, and behind the server."""
        for question in QUESTIONS:
            if self.late:
                return
            found = self.pairs(question, tokens, drafting, rounds)
            first, rate = ([median(run[name] for run in one) for one in found] for name in ("first_s", "rate"))
            ratio, own = (
                sorted(b[name] / a[name] for a, b in zip(*found, strict=True)) for name in ("rate", "own_rate")
            )
            yield {
                "measured": "overhead", "drafting": drafting, "question": question, "rounds": len(found[0]),
                "first_ms": [round(s * 1e3, 2) for s in first],
                "first_more_ms": round((first[1] - first[0]) * 1e3, 2), "rate": [round(each, 1) for each in rate],
                "rate_ratio": round(median(ratio), 4),
                "between": [round(ratio[len(ratio) * at // 4], 3) for at in (1, 3)],
                "decoder_ratio": round(median(own), 4),
                "client_us": round(median(run["client_us"] for run in found[1]), 2),
            }  # fmt: skip

    def reuse(self, prompt: int, new: int, rounds: int) -> dict[str, Any]:
        """Turns of one conversation behind a prompt of about `prompt` tokens, `new` characters a turn."""
        self.forget()
        history = [
            {"role": "system", "content": "You are an agent that works in a folder."},
            {"role": "user", "content": _text(prompt)},
        ]
        whole = self.ask(history, ANSWER)
        per_token = whole["first_s"] / whole["prompt"]
        found: dict[str, list[dict[str, Any]]] = {"in_place": [], "after_another": []}
        for at in range(rounds):
            for name, turns in found.items():
                if name == "after_another":
                    side = [
                        {"role": "system", "content": "You name chats."},
                        {"role": "user", "content": _text(SIDE, at)},
                    ]
                    self.ask(side, ANSWER)
                history += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": _text(new, at)}]
                turns.append(self.ask(history, ANSWER))
        return {
            "measured": "reuse", "prompt": whole["prompt"], "first_turn_s": round(whole["first_s"], 3),
            **{name: _summary(turns, per_token) for name, turns in found.items()},
        }  # fmt: skip


def _summary(turns: Sequence[dict[str, Any]], per_token: float) -> dict[str, Any]:
    read = [one["prompt"] - one["cached"] for one in turns]
    return {
        "read": read,
        "first_s": [round(one["first_s"], 4) for one in turns],
        "median_s": round(median(one["first_s"] for one in turns), 4),
        "allowed_s": round(0.6 + per_token * median(read), 4),
    }


def _text(count: int, seed: int = 0) -> str:
    """So many characters. The vocabulary of a synthetic model has a token for each."""
    return " ".join(f"{(at * 7919 + seed) % 9973:04d}" for at in range(count // 5 + 1))[:count]


@contextmanager
def served(engine: Engine, until: float) -> Iterator[Bench]:
    """Serve an engine, and start a client."""
    knobs = Knobs()
    pair = Served("bench", "", Defaults(knobs, frozenset(knobs.to_dict()), greedy=True))
    server = ServerBeside(engine, pair, ServerSettings(port=0), Requests(records=0), DecoderUse())
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "tools.bench.serving", "--client", server.address], **pipe)
    try:
        yield Bench(engine, process, until)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        server.close(60.0)


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, help="folder of synthetic files, written if missing (the demo pair)")
    add("--model", choices=MODELS, default="27b", help="which synthetic files")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--prompt", type=int, default=0, help="characters of the long prompt (25,000; demo pair: 700)")
    add("--new", type=int, default=64, help="characters of each further turn")
    add(
        "--tokens",
        type=int,
        default=0,
        help="tokens of the answers whose speed is compared (200; demo pair on a card: 1,000)",
    )
    add("--rounds", type=int, default=5)
    add("--drafting", nargs="+", default=["plain"])
    add("--only", nargs="+", choices=("cost", "reuse", "overhead"), default=("cost", "reuse", "overhead"))
    add("--seconds", type=float, default=110.0, help="nothing more begins after so many (110)")
    add("--client", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        client(args.client)
        return
    until = time.perf_counter() + args.seconds
    prompt = args.prompt or (25_000 if args.folder else 700)
    tokens = args.tokens or (1_000 if args.device == "cuda" and args.folder is None else 200)
    context = prompt + args.rounds * 2 * (args.new + 64) + 4096 if args.folder else CONTEXT_DEMO
    engine = synthetic_or_demo(args.model, args.folder, args.device, context)
    collector.calm(tidied=False)
    with served(engine, until) as bench:

        def measured() -> Iterator[dict[str, Any]]:
            for drafting in args.drafting if "overhead" in args.only else ():
                yield from bench.overhead(drafting, args.rounds, tokens)
            for drafting in args.drafting if "cost" in args.only else ():
                yield from (bench.cost(drafting, rate, args.rounds) for rate in FED if not bench.late)
            if "reuse" in args.only and not bench.late:
                yield bench.reuse(prompt, args.new, args.rounds)

        for found in measured():
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    run_tool(main)
