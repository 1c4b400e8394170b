"""Turns that call tools: calls in place of text, results in the prompt, over the demo pair with given answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash_core.conversation import Conversation, Turn
from dflash_core.engine import Engine
from dflash_core.knobs import Knobs
from dflash_core.messages import Call, Message
from support import demo_pair
from support.scripted import ScriptedEngine

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}},
    },
}
CALL = (
    "<tool_call>\n<function=read_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=lines>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
PLAIN = Knobs(thinking=False)


def conversation(*answers: str, width: int = 4) -> tuple[Conversation, list[str]]:
    prompts: list[str] = []
    waiting = list(answers)

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return waiting.pop(0)

    engine = ScriptedEngine(script, width=width)
    made = Conversation(engine, engine.target.tokenizer, engine.target.template)
    made.tools = [TOOL]
    return made, prompts


def ended(turn: Turn) -> Turn:
    shown = "".join(piece.text for piece in turn)
    assert turn.text.startswith(shown)
    return turn


def results(turn: Turn, *texts: str) -> list[Message]:
    return [Message("tool", text, call_id=call.id, name=call.name) for call, text in zip(turn.calls, texts)]


@pytest.mark.parametrize("width", [1, 2, 3, 7, 200])
def test_a_call_is_no_text(width: int) -> None:
    chat, prompts = conversation(f"I look.\n\n{CALL}", "Done.", width=width)
    turn = ended(chat.ask("Read a.txt", PLAIN))
    assert turn.text.strip() == "I look."
    [call] = turn.calls
    assert (call.name, call.arguments) == ("read_file", {"path": "a.txt", "lines": 3})
    assert call.id.startswith("call_")
    assert not turn.calling
    assert turn.report is not None
    assert turn.report.text == turn.text
    assert turn.record is not None
    assert "<tool_call>" in turn.record.text  # as the model wrote it
    assert chat.messages[-1].calls == turn.calls
    last = ended(chat.ask(results(turn, "hello <|im_end|>"), PLAIN))
    assert last.text == "Done."
    assert last.calls == ()
    assert "hello <|im_end|>" in prompts[1]
    assert [one.role for one in chat.messages] == ["user", "assistant", "tool", "assistant"]


def test_the_prompt_with_results_begins_as_the_one_before() -> None:
    chat, _ = conversation(CALL, "Done.")
    first = ended(chat.ask("Read a.txt", PLAIN))
    second = ended(chat.ask(results(first, "hello"), PLAIN))
    continued = first.prompt.continued
    assert continued > 0
    assert first.prompt.ids[:continued] == second.prompt.ids[:continued]
    assert continued in first.prompt.keep


def test_several_calls_and_reasoning() -> None:
    chat, _ = conversation(f"I think.\n</think>\n\nTwo.\n\n{CALL}\n{CALL}")
    turn = ended(chat.ask("Read", Knobs(thinking=True)))
    assert turn.thinking.strip() == "I think."
    assert turn.text.strip() == "Two."
    assert [call.name for call in turn.calls] == ["read_file", "read_file"]
    assert len({call.id for call in turn.calls}) == 2


def test_a_malformed_call_is_text_with_a_reason() -> None:
    chat, _ = conversation("<tool_call>\nnothing like a call\n</tool_call>")
    turn = ended(chat.ask("Read", PLAIN))
    assert turn.calls == ()
    assert "nothing like a call" in turn.text
    assert turn.report is not None
    assert any("call" in note for note in turn.report.notes)


def test_a_call_that_is_cut_off_does_not_count() -> None:
    chat, _ = conversation(f"I look.\n\n{CALL}")
    turn = ended(chat.ask("Read", Knobs(thinking=False, max_tokens=20)))
    assert turn.report is not None
    assert turn.report.stop == "max tokens"
    assert turn.calls == ()


def test_a_turn_that_is_stopped_in_a_call_has_none() -> None:
    chat, _ = conversation(f"I look.\n\n{CALL}", width=1)
    turn = chat.ask("Read", PLAIN)
    for _ in turn:
        if turn.calling:
            turn.stop()
    assert turn.calls == ()
    assert chat.messages[-1].calls == ()


def test_while_a_call_is_written_its_tool_is_known() -> None:
    chat, _ = conversation(f"I look.\n\n{CALL}", width=1)
    turn = chat.ask("Read", PLAIN)
    seen = [turn.calling for _ in turn]
    assert "read_file" in seen
    assert seen[0] == ""


def test_without_tools_all_is_text() -> None:
    chat, prompts = conversation(CALL)
    chat.tools = ()
    turn = ended(chat.ask("Read", PLAIN))
    assert turn.calls == ()
    assert "read_file" in turn.text
    assert "tools" not in prompts[0]


def test_calls_are_found_where_the_tools_have_gone() -> None:
    chat, _ = conversation(CALL, CALL)
    first = ended(chat.ask("Read", PLAIN))
    chat.tools = ()
    second = ended(chat.ask(results(first, "hello"), PLAIN))
    assert [call.name for call in second.calls] == ["read_file"]


def test_a_retry_answers_the_results_again() -> None:
    chat, prompts = conversation(CALL, "Once.", "Again.")
    first = ended(chat.ask("Read", PLAIN))
    ended(chat.ask(results(first, "hello"), PLAIN))
    assert ended(chat.retry(PLAIN)).text == "Again."
    assert prompts[1] == prompts[2]


def test_other_tools_are_read_again() -> None:
    chat, _ = conversation("Hello.")
    ended(chat.ask("Hello", PLAIN))
    assert chat.reading(PLAIN) is None
    chat.tools = ()
    found = chat.reading(PLAIN)
    assert found is not None
    assert found.why == "the tools changed"


def test_a_preview_has_the_tools_and_the_calls() -> None:
    chat, _ = conversation(CALL)
    ended(chat.ask("Read", PLAIN))
    text = chat.preview("and now?", PLAIN)
    assert "Reads a file." in text
    assert "<function=read_file>" in text


def test_messages_with_calls_are_a_history() -> None:
    chat, prompts = conversation("So it is.")
    call = Call("call_1", "read_file", {"path": "a.txt"})
    history = [Message("user", "Read"), Message("assistant", "", calls=(call,)), Message("tool", "x", call_id="call_1")]
    chat.set_messages([*history, Message("assistant", "It says x.")])
    ended(chat.ask("Really?", PLAIN))
    assert "<tool_response>\nx\n</tool_response>" in prompts[0]


def test_what_was_read_before_a_call_is_not_read_again() -> None:
    """On the demo pair itself, whose state can only go back to where it was saved."""
    engine = Engine(demo_pair.target(), demo_pair.draft())
    chat = Conversation(engine, engine.target.tokenizer, engine.target.template, "Be brief.")
    chat.tools = [TOOL]
    first = ended(chat.ask("Read a.txt", Knobs(thinking=False, max_tokens=4)))
    call = Call("call_1", "read_file", {"path": "a.txt"})
    chat.messages = (*chat.messages[:-1], replace(chat.messages[-1], calls=(call,)))
    result = Message("tool", "hello", call_id="call_1", name="read_file")
    second = ended(chat.ask([result], Knobs(thinking=False, max_tokens=4)))
    assert second.report is not None
    assert second.report.stats.reused_tokens >= first.prompt.continued > 100
