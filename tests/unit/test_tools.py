"""Tools without servers: what is offered, what a result is to the model, what is asked about, and the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_core.errors import DFlashError
from dflash_core.messages import Call
from dflash_tui.application.conversations.branches import Node, messages
from dflash_tui.application.conversations.tool_messages import (
    NO_RESULT,
    ToolCall,
    ToolResult,
    calls_of,
    stored,
)
from dflash_tui.application.settings.config import load_config
from dflash_tui.application.settings.toml_file import TomlError
from dflash_tui.application.settings.tool_servers import allow_always, expanded
from dflash_tui.application.tools.offered import OfferedTool, for_template, listed, together
from dflash_tui.application.tools.rounds import (
    EMPTY,
    MAX_CALLS,
    MAX_ROUNDS,
    Permissions,
    as_text,
    fitting,
    over,
    plan,
    result_tokens,
    shortened,
)

OBJECT = {"type": "object", "properties": {"path": {"type": "string"}}}


def tool(own: str, server: str = "files") -> OfferedTool:
    return OfferedTool(server, own, own, "", OBJECT)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("no object", "not an object"),
        ({"inputSchema": OBJECT}, "it has no name"),
        ({"name": " ", "inputSchema": OBJECT}, "it has no name"),
        ({"name": "a"}, "it has no schema of its arguments"),
        ({"name": "a", "inputSchema": "object"}, "it has no schema of its arguments"),
        ({"name": "a", "inputSchema": {"type": "array"}}, "its arguments are of type 'array', expected an object"),
        ({"name": "a", "inputSchema": OBJECT, "description": 3}, "its description is no text"),
        ({"name": "a", "inputSchema": {"type": "object", "properties": 3}}, "its schema is broken: 3 is not of type"),
        ({"name": "a", "inputSchema": {"type": "object", "required": "path"}}, "its schema is broken: 'path' is not"),
        ({"name": "a", "inputSchema": OBJECT, "description": "a" * 70_000}, "its description and schema have 70,0"),
        ({"name": "good", "inputSchema": OBJECT}, "another tool has its name"),
    ],
)
def test_a_broken_tool_is_left_out_with_a_reason(broken: object, why: str) -> None:
    good = {"name": "good", "inputSchema": OBJECT, "description": "Does."}
    tools, left_out = listed("files", [good, broken])
    assert [one.name for one in tools] == ["good"]
    [one] = left_out
    assert one.why.startswith(why)


def test_a_schema_that_is_nested_without_end_is_left_out() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(5_000):
        schema = {"type": "object", "properties": {"a": schema}}
    tools, [left] = listed("files", [{"name": "deep", "inputSchema": schema}])
    assert tools == ()
    assert left.name == "deep"


def test_names_are_unique_and_fit_every_form() -> None:
    found, _ = listed("a", [{"name": "read file/v2", "inputSchema": OBJECT}, {"name": "same", "inputSchema": OBJECT}])
    names = [(one.name, one.own) for one in together([found, (tool("same", "b"),)])]
    assert names == [("read_file_v2", "read file/v2"), ("a_same", "same"), ("b_same", "same")]
    long = [tool("x" * 80, "a"), tool("x" * 80, "b")]
    cut = [one.name for one in together([listed("a", [{"name": "x" * 80, "inputSchema": OBJECT}])[0], long[1:]])]
    assert len({*cut}) == 2


def test_two_tools_that_would_have_the_same_name_after_cutting_keep_two() -> None:
    same = [{"name": f"a{mark}b", "inputSchema": OBJECT} for mark in "./ "]
    assert len({one.name for one in together([listed("files", same)[0]])}) == 3


def test_tools_as_templates_get_them() -> None:
    [made] = for_template([OfferedTool("s", "a", "a", "Does.", OBJECT)])
    assert made == {"type": "function", "function": {"name": "a", "description": "Does.", "parameters": OBJECT}}


@pytest.mark.parametrize(
    ("content", "structured", "failed", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], None, False, "a\nb"),
        ([{"type": "image", "data": "AAAA", "mimeType": "image/png"}], None, False, "[image omitted: image/png]"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "text": "t"}}], None, False, "t"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "blob": "AA"}}], None, False,
         "[resource omitted: file:///a]"),
        ([{"type": "resource_link", "uri": "file:///a"}], None, False, "[resource: file:///a]"),
        ([], {"a": 1}, False, '{"a": 1}'),
        ([], None, False, EMPTY),
        ([{"type": "text", "text": "no such file"}], None, True, "Error: no such file"),
        ([{"type": "text", "text": "error: no such file"}], None, True, "error: no such file"),
        ([{"type": "text", "text": "a\ud800b"}], None, False, "a?b"),
    ],
)  # fmt: skip
def test_a_result_as_text(content: Any, structured: object, failed: bool, text: str) -> None:
    assert as_text(content, structured, failed=failed) == text


def test_a_long_result_is_cut_with_a_mark() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("a" * 1_200, 200) == "a" * 200 + "\n[cut here: 1,000 more of 1,200 characters]"


@pytest.mark.parametrize("tokens", [0, 1, 40, 500, 100_000])
def test_a_result_fits_into_its_tokens(tokens: int) -> None:
    text = "word " * 30_000
    found = fitting(text, tokens, lambda one: -(-len(one) // 3))
    if tokens >= 40:
        assert -(-len(found) // 3) <= tokens
        assert found.startswith("word ")
        assert len(found) > 64_000 or -(-len(found) // 3) > tokens * 0.9
    assert found.endswith("characters]")


def test_a_short_result_is_left_as_it_is() -> None:
    assert fitting("short", 100, len) == "short"


def test_half_of_what_is_free_is_for_results() -> None:
    assert result_tokens(2_048, 48, 2) == 500
    assert result_tokens(2_048, 2_100, 1) == 0


def planned(*names: str, rounds: int = 0, always: dict[str, frozenset[str]] | None = None) -> list[tuple[bool, str]]:
    calls = [ToolCall(f"call_{n}", name) for n, name in enumerate(names)]
    tools = [tool("read"), tool("write")]
    found = plan(calls, tools, Permissions(always or {}), "here", rounds=rounds)
    return [(one.asks, one.refusal) for one in found]


def test_what_is_asked_about() -> None:
    assert planned("read", "write") == [(True, ""), (True, "")]
    assert planned("read", "write", always={"files": frozenset({"read"})}) == [(False, ""), (True, "")]
    assert planned("read", "write", always={"files": frozenset({"*"})}) == [(False, ""), (False, "")]
    assert planned("read", always={"other": frozenset({"*"})}) == [(True, "")]


def test_an_unknown_tool_is_refused_with_those_that_there_are() -> None:
    assert planned("reed") == [(False, "There is no tool reed. Known tools: read, write.")]


def test_calls_and_rounds_have_limits() -> None:
    found = planned(*["read"] * (MAX_CALLS + 2))
    assert [asks for asks, _ in found] == [True] * MAX_CALLS + [False] * 2
    assert planned("read", rounds=MAX_ROUNDS - 1) == [(True, "")]
    [(asks, refusal)] = planned("read", rounds=MAX_ROUNDS)
    assert not asks
    assert "round" in refusal
    assert not over(MAX_ROUNDS)
    assert over(MAX_ROUNDS + 1)


def test_what_is_allowed_in_one_conversation_is_not_in_another() -> None:
    permissions = Permissions({})
    permissions.allow_here(tool("read"), "one")
    assert permissions.allowed(tool("read"), "one")
    assert not permissions.allowed(tool("read"), "two")
    assert not permissions.allowed(tool("write"), "one")
    assert not permissions.allowed(tool("read", "other"), "one")
    permissions.allow_server("files")
    assert permissions.allowed(tool("write"), "two")


# Messages


def test_calls_and_results_as_messages() -> None:
    call = ToolCall("call_1", "add", '{"a": 2}')
    ask = Node("user", "add")
    answer = Node("assistant", "I add.", ask.id, calls=(call,))
    result = Node("user", "", answer.id, results=(ToolResult("call_1", "add", "3"),))
    last = Node("assistant", "Three.", result.id)
    found = messages([ask, answer, result, last], "Be brief.")
    assert [one.role for one in found] == ["system", "user", "assistant", "tool", "assistant"]
    assert found[2].calls == (Call("call_1", "add", {"a": 2}),)
    assert (found[3].content, found[3].call_id, found[3].name) == ("3", "call_1", "add")


def test_calls_without_results_get_one() -> None:
    ask = Node("user", "add")
    answer = Node("assistant", "", ask.id, calls=(ToolCall("call_1", "add"), ToolCall("call_2", "add")))
    found = messages([ask, answer, Node("user", "and now?", answer.id)], "")
    assert [one.role for one in found] == ["user", "assistant", "tool", "tool", "user"]
    assert found[2].content == found[3].content == NO_RESULT
    assert [one.role for one in messages([ask, answer], "")] == ["user", "assistant"]


def test_arguments_come_back_as_they_were() -> None:
    calls = (Call("call_1", "add", {"b": [1, {"c": None}], "a": 'x "y" \n'}),)
    assert calls_of(stored(calls)) == calls
    assert list(calls_of(stored(calls))[0].arguments) == ["b", "a"]
    assert calls_of((ToolCall("c", "add", "[1"),))[0].arguments == {"arguments": "[1"}


# Settings


def settings(tmp_path: Path, text: str) -> tuple[Any, tuple[str, ...]]:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    config = load_config({}, {}, user=file, project=tmp_path / "none.toml")
    return config.settings.servers, config.problems


def test_servers_in_the_settings(tmp_path: Path) -> None:
    (files, web), problems = settings(
        tmp_path,
        """
        theme = "dflash-night"
        [mcp_servers.files]
        command = "npx"
        args = ["-y", "server-filesystem", "/tmp"]
        env = { TOKEN = "${TOKEN}" }
        cwd = "work"
        allow = ["read_file"]
        [mcp_servers.web]
        type = "http"
        url = "https://mcp.example.org/mcp"
        headers = { Authorization = "Bearer ${TOKEN}" }
        timeout = 5
        start = true
        """,
    )
    assert problems == ()
    assert (files.name, files.command, files.args) == ("files", "npx", ("-y", "server-filesystem", "/tmp"))
    assert files.env == {"TOKEN": "${TOKEN}"}
    assert files.cwd == tmp_path / "work"
    assert files.allow == {"read_file"}
    assert not files.start
    assert (web.url, web.timeout, web.start) == ("https://mcp.example.org/mcp", 5, True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[mcp_servers.a]\nargs = []", "found neither of command and url"),
        ('[mcp_servers.a]\ncommand = "a"\nurl = "http://b"', "found both of command and url"),
        ('[mcp_servers.a]\nurl = "ftp://b"', "expected http:// or https://"),
        ("[mcp_servers.a]\ncommand = 3", "command: found a whole number, expected a string"),
        ('[mcp_servers.a]\ncommand = "a"\ncomand = "b"', "comand is no field"),
        ('[mcp_servers.a]\ncommand = "a"\ntimeout = 0', "timeout"),
        ('[mcp_servers."a b"]\ncommand = "a"', "found the name 'a b'"),
        ("mcp_servers = 3", "expected tables [mcp_servers.NAME]"),
    ],
)
def test_a_wrong_server_is_left_out_with_a_reason(tmp_path: Path, text: str, why: str) -> None:
    servers, [problem] = settings(tmp_path, text + '\n[mcp_servers.good]\ncommand = "b"' * text.startswith("["))
    assert why in problem
    assert [one.name for one in servers] == ["good"] * text.startswith("[")


def test_a_project_names_no_servers(tmp_path: Path) -> None:
    project = tmp_path / "dflash-tui.toml"
    project.write_text('[mcp_servers.a]\ncommand = "rm"\n[knobs]\nmax_tokens = 7', encoding="utf-8")
    config = load_config({}, {}, user=tmp_path / "none", project=project)
    assert config.settings.servers == ()
    assert config.settings.knobs.max_tokens == 7
    [problem] = config.problems
    assert "can name tool servers" in problem


def test_allowing_a_server_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('# mine\n[mcp_servers.a]\ncommand = "a" # here\nallow = ["b"]\n[keys]\n', encoding="utf-8")
    allow_always("a", file)
    assert file.read_text(encoding="utf-8").replace(" ", "") == (
        '#mine\n[mcp_servers.a]\ncommand="a"#here\nallow=["*"]\n[keys]\n'
    )
    with pytest.raises(TomlError, match=r"no longer has a table \[mcp_servers.b\]"):
        allow_always("b", file)


def test_variables_in_the_settings() -> None:
    assert expanded("Bearer ${KEY}, $5", {"KEY": "k"}) == "Bearer k, $5"
    with pytest.raises(DFlashError, match="the environment variable NO_KEY is not set"):
        expanded("${NO_KEY}", {})
