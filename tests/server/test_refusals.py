"""What is refused: by whom, in which words, and that nothing secret is written anywhere."""

from __future__ import annotations

import functools
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.text.template import ChatTemplate
from dflash_tui.server.body import decode
from dflash_tui.server.chat import ChatRequest
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.settings import RequestLog, ServerSettings
from support import demo_pair
from support.scripted import ScriptedEngine
from support.serving import Running, running
from support.tool_templates import TEMPLATES

HELLO = [{"role": "user", "content": "Hello"}]
CALLED = {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}
KEY = "sk-a-key-that-nobody-may-see"
OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize", "/apply-template")
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")


def message(**more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, "messages": HELLO, **more}


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 5, **more}


def message_with(function: dict[str, Any], **more: Any) -> dict[str, Any]:
    return message(tools=[{"name": function["name"], "input_schema": function["parameters"], **more}])


def parts(*found: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": found}])


NOTHING = {"type": "function", "function": {"name": "nothing"}}
FREE = {"type": "custom", "name": "note"}
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
SPACE = {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]}
# Path, body, and the field that is named.
BAD: list[tuple[str, Any, str | None]] = [
    ("/dflash/answers/1", {"knobs": {"top_k": -5}}, "knobs"),
    ("/v1/chat/completions", "{", None),
    ("/v1/chat/completions", "[]", None),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\xff"}]}', None),
    ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
    ("/v1/chat/completions", '{"temperature": NaN, "messages": []}', None),
    ("/v1/chat/completions", "[" * 100_000, None),
    ("/v1/chat/completions", {}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", chat(messages=[{"role": "system", "content": "a"}]), "messages"),
    ("/v1/chat/completions", chat(messages=[*HELLO, CALLED]), "messages"),
    ("/v1/chat/completions", chat(messages=[{"role": "judge", "content": "a"}]), "messages[0].role"),
    ("/v1/chat/completions", chat(messages=[{"role": "user", "content": 3}]), "messages[0].content"),
    ("/v1/chat/completions", parts({"type": "image_url"}), "messages[0].content[0]"),
    ("/v1/chat/completions", parts({"type": "text"}), "messages[0].content[0].text"),
    ("/v1/chat/completions", chat(temperature="hot"), "temperature"),
    ("/v1/chat/completions", chat(temperature=9), "temperature"),
    ("/v1/chat/completions", chat(temperature=9, dflash={"temperature": 0.5}), "temperature"),
    ("/v1/chat/completions", chat(top_p=-0.1), "top_p"),
    ("/v1/chat/completions", chat(top_k=1.5), "top_k"),
    ("/v1/chat/completions", chat(stream="yes"), "stream"),
    ("/v1/chat/completions", chat(max_tokens=0), "max_tokens"),
    ("/v1/chat/completions", chat(max_tokens=-3), "max_tokens"),
    ("/v1/chat/completions", chat(seed=2**70), "seed"),
    ("/v1/chat/completions", chat(n=2), "n"),
    ("/v1/chat/completions", chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    ("/v1/chat/completions", chat(top_logprobs=2), "top_logprobs"),
    ("/v1/chat/completions", chat(logit_bias={"5": 1.0}), "logit_bias"),
    ("/v1/chat/completions", chat(stop=["a"] * 17), "stop"),
    ("/v1/chat/completions", chat(stop=[""]), "stop[0]"),
    ("/v1/chat/completions", chat(modalities=["audio"]), "modalities"),
    ("/v1/chat/completions", chat(reasoning_effort="huge"), "reasoning_effort"),
    ("/v1/chat/completions", chat(tools=[{"type": "function"}]), "tools[0].function"),
    ("/v1/chat/completions", chat(tools=[{"type": "function", "function": {"name": 3}}]), "tools[0].function.name"),
    ("/v1/chat/completions", chat(tools=[{"type": "function", "function": {"name": ""}}]), "tools"),
    ("/v1/messages", message(tools=[{"name": " ", "input_schema": {}}]), None),
    ("/v1/chat/completions", chat(tools=[NOTHING, {"function": {"name": "nothing", "strict": True}}]), "tools"),
    ("/v1/messages", message(tools=[{"name": "a", "input_schema": {}}, {"name": "a", "description": "b"}]), None),
    ("/v1/messages/count_tokens", message(tools=[{"name": "a"}, {"name": "a", "description": "b"}]), None),
    ("/v1/responses", {"input": "a", "tools": [FREE, {**FREE, "description": "other"}]}, "tools"),
    ("/v1/responses", {"input": "a", "tools": [FREE, {**FREE, "type": "function", "parameters": INPUT}]}, "tools"),
    ("/v1/responses", {"input": "a", "tools": [{"type": "function", "name": "a__b"}, SPACE]}, "tools"),
    ("/apply-template", {"messages": HELLO, "tools": [NOTHING, {"function": {"name": "nothing", "description": "b"}}]},
     "tools"),
    ("/v1/chat/completions", chat(tool_choice="must"), "tool_choice"),
    ("/v1/chat/completions", chat(response_format={"type": "xml"}), "response_format.type"),
    ("/v1/chat/completions", chat(response_format={"type": "json_schema"}), "response_format.schema"),
    ("/v1/chat/completions", chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "strange"}}}), "response_format"),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "schema": 3}}}, "text.format.schema"),
    ("/v1/responses", {"input": []}, "input"),
    ("/v1/responses", {"input": "a", "top_logprobs": 21}, "top_logprobs"),
    ("/v1/responses", {"input": [{"role": "user", "content": "a"}, {
        "type": "function_call", "call_id": "c", "name": "f"}]}, "input"),
    ("/v1/chat/completions", chat(tools=[{"function": {"name": "f", "parameters": {"properties": {"a": {
        "type": "strange"}}}}}], response_format={"type": "json_object"}), "tools"),
    ("/v1/chat/completions", chat(dflash={"bugdet": 3}), "dflash.bugdet"),
    ("/v1/chat/completions", chat(dflash={"budget": 0}), "dflash.budget"),
    ("/v1/chat/completions", chat(dflash={"budget": [3]}), "dflash.budget"),
    ("/v1/chat/completions", chat(dflash={"draft": "mtp"}), None),
    ("/v1/chat/completions", chat(dflash={"regex": 3}), "dflash.regex"),
    ("/v1/chat/completions", chat(dflash={"regex": "("}), "dflash.regex"),
    ("/v1/chat/completions", chat(dflash={"choice": []}), "dflash.choice"),
    ("/v1/chat/completions", chat(dflash={"choice": ["a"], "regex": "a"}), "dflash.choice"),
    ("/v1/chat/completions", chat(dflash={"lark": "start: ("}), "dflash.lark"),
    ("/v1/chat/completions", chat(dflash={"lark": "start: /a/"}, response_format={"type": "json_object"}),
     "dflash.lark"),
    ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
    ("/v1/completions", {"prompt": [1, -1]}, "prompt"),
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("/v1/completions", {"prompt": "a", "best_of": 2}, "best_of"),
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "1"}]}, "input[0]"),
    ("/v1/responses", {"input": [3]}, "input[0]"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ("/v1/responses", {"input": "a", "tools": [{"type": "what"}]}, "tools[0].type"),
    ("/detokenize", {"tokens": [1 << 40]}, "tokens[0]"),
    ("/v1/messages", "{", None),
    ("/v1/messages", message(max_tokens=None), None),
    ("/v1/messages", message(max_tokens=0), None),
    ("/v1/messages", message(temperature="x"), None),
    ("/v1/messages", message(messages=[{"role": "tool", "content": "a"}]), None),
    ("/v1/messages", message(messages=[{"role": "user", "content": [{"type": "document"}]}]), None),
    ("/v1/messages", message(messages=[{"role": "user", "content": [{"type": "tool_result"}]}]), None),
    ("/v1/messages", message(thinking={"type": "maybe"}), None),
    ("/v1/messages", message(thinking={"type": "enabled", "budget_tokens": 0}), None),
    ("/v1/messages", message(tool_choice={"type": "any"}), None),
    ("/v1/chat/completions", chat(tool_choice="required"), "tool_choice"),
    ("/v1/responses", {"input": "a", "tool_choice": {"type": "function"}}, "tool_choice"),
    ("/v1/messages", message(stop_sequences=[""]), None),
    ("/v1/messages/count_tokens", {"messages": 3}, None),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_named(server: Running, number: int) -> None:
    path, body, field = BAD[number]
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    with server.http() as http:
        response = http.post(path, content=data)
    assert response.status_code == 400
    check_error(response, anthropic=path in ANTHROPIC)
    if path not in ANTHROPIC:
        assert response.json()["error"]["param"] == field


def test_tools_of_one_name_are_one_if_they_are_equal(server: Running) -> None:
    first = {"name": "look", "parameters": {"type": "object"}, "description": "a"}
    body: Any = {"messages": HELLO, "tools": [{"function": first}, {"type": "function", "function": dict(first)}]}
    with server.http() as http:
        one = http.post("/apply-template", json=body)
        body["tools"][0] = {"function": {**first, "strict": True}}
        two = http.post("/apply-template", json=body)
    assert one.json()["prompt"].count('"look"') == 1
    assert two.json()["error"]["message"] == "two different tools are named 'look'; give each a name of its own"


BROKEN: list[tuple[Any, bool, str]] = [
    # Parameters, whether they are refused where calls need not follow them, and the message.
    ({"type": 5}, True, "parameters of the type 5, expected object"),
    ({"type": ["string", "null"]}, True, 'parameters of the type ["string", "null"], expected object'),
    ({"properties": 3}, True, "properties that are not schemas by their names"),
    ({"properties": {"a": "string"}}, True, "properties that are not schemas by their names"),
    ({"required": "a"}, True, "a list of required properties that are not names"),
    ({"properties": {"a": {"items": [{"type": "str"}]}}}, False, "the type 'str', expected one of null, boolean, "
     "integer, number, object, array, string"),
    ({"properties": {"default": {"type": "str"}}}, False, "the type 'str', expected one of null, boolean, integer, "
     "number, object, array, string"),
    ({"$ref": "http://x/y"}, False, "the reference 'http://x/y', expected one into the schema itself"),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "always", "message"), BROKEN)
def test_tools_with_broken_schemas(server: Running, parameters: Any, always: bool, message: str) -> None:
    function = {"name": "look", "parameters": parameters}
    sent: list[tuple[str, Any]] = [
        ("/v1/chat/completions", chat(tool_choice="required", tools=[{"function": function}])),
        ("/v1/messages", message_with(function, strict=True)),
        ("/v1/responses", {"input": "a", "tools": [{"type": "function", **function, "strict": True}]}),
    ]
    with server.http() as http:
        for path, body in sent:
            response = http.post(path, json=body)
            assert response.status_code == 400
            assert response.json()["error"]["message"] == f"the tool 'look' has {message}"
        read = http.post("/v1/chat/completions", json=chat(max_tokens=1, tools=[{"function": function}]))
    assert read.status_code == (400 if always else 200)


def test_only_the_tool_that_may_be_called_is_followed(server: Running) -> None:
    look, other = ({"function": {"name": name, "parameters": {"properties": {"a": {"type": kind}}}}}
                   for name, kind in (("look", "string"), ("other", "str")))  # fmt: skip
    with server.http() as http:
        for name, status in (("look", 200), ("other", 400)):
            choice = {"type": "function", "function": {"name": name}}
            body = chat(tools=[look, other], tool_choice=choice, max_tokens=1)
            assert http.post("/v1/chat/completions", json=body).status_code == status, name


@pytest.mark.parametrize("name", ["hermes", "llama"])
def test_beside_a_format_schemas_count_where_calls_are_constrained(
    name: str, monkeypatch: pytest.MonkeyPatch, templates_here: None
) -> None:
    """Regression: with a format and a model whose calls may begin anywhere in a text, which then writes none, a tool
    that cannot be followed was refused."""
    engine = demo_pair.new_engine()
    monkeypatch.setitem(vars(engine.target), "template", ChatTemplate(TEMPLATES[name]))
    function = {"name": "look", "parameters": {"properties": {"a": {"type": "str"}}}}
    body = chat(max_tokens=1, tools=[{"function": function}], response_format={"type": "json_object"})
    with running(engine) as here, here.http() as http:
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == (200 if name == "llama" else 400), response.text
    if name == "hermes":
        assert response.json()["error"]["message"].startswith("the tool 'look' has the type 'str'")


def test_what_is_no_part_of_a_schema_is_not_looked_at(server: Running) -> None:
    fields = {"type": {"type": "string", "default": {"type": "x"}}, "null": {"type": ["null", "integer"]}, "any": True}
    schema = {"type": "object", "properties": fields, "required": None, "dependentRequired": {"type": ["any"]}}
    tool = {"function": {"name": "look", "parameters": schema}}
    with server.http() as http:
        assert http.post("/apply-template", json=chat(tool_choice="required", tools=[tool])).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_a_schema_that_is_too_deep_for_a_prompt_is_refused(server: Running, path: str) -> None:
    """Regression: it was answered with 500."""
    schema = functools.reduce(lambda inner, _: {"a": inner}, range(900), dict[str, Any]())
    body = {"messages": HELLO, "tools": [{"function": {"name": "look", "parameters": schema}}]}
    with server.http() as http:
        response = http.post(path, json=body)
    assert response.status_code == 400
    assert "nested too deeply" in response.json()["error"]["message"]


def check_error(response: httpx.Response, *, anthropic: bool) -> None:
    """It has the form of its dialect, and the headers of every error."""
    found = response.json()
    error = found["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert "`" not in error["message"], "the library's own words"
    if anthropic:
        assert set(error) == {"type", "message"}
        assert (found["type"], found["request_id"]) == ("error", response.headers["request-id"])
    else:
        assert set(error) == {"type", "message", "param", "code"}
    assert response.headers["x-request-id"].startswith("req_")
    if response.status_code < 500 and response.status_code != 429:
        assert response.headers["x-should-retry"] == "false"


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_look_for(server: Running) -> None:
    import anthropic
    import openai

    long: list[Any] = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(openai.BadRequestError) as by_openai:
        server.openai().chat.completions.create(model="demo", messages=long)
    assert by_openai.value.code == "context_length_exceeded"
    assert "maximum context length is 2048 tokens" in by_openai.value.message
    with pytest.raises(anthropic.BadRequestError) as by_anthropic:
        server.anthropic().messages.create(model="m", max_tokens=5, messages=long)
    assert f"prompt is too long: {3000 + 12} tokens > 2048 maximum" in str(by_anthropic.value)
    for words in ("word " * 3000, "word " * 500_000):
        with pytest.raises(openai.BadRequestError, match="shorten the input") as by_responses:
            server.openai().responses.create(model="demo", input=words)
        assert by_responses.value.param == "input"
    with pytest.raises(openai.BadRequestError, match="shorten the prompt") as by_completions:
        server.openai().completions.create(model="demo", prompt="word " * 3000)
    assert by_completions.value.param == "prompt"


def test_unknown_models_and_paths(server: Running) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="'demo'"):
        server.openai().chat.completions.create(model="gpt-9", messages=HELLO)  # type: ignore[arg-type]
    with server.http() as http:
        for method, path, status in (
            ("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405),
            ("POST", "/props", 405), ("GET", "/v1/models/other", 404), ("GET", "/v1/responses/resp_1", 404),
            ("GET", "/v1/messages", 405),
        ):  # fmt: skip
            response = http.request(method, path)
            assert response.status_code == status
            check_error(response, anthropic=path in ANTHROPIC)
            assert status != 405 or f"this path takes {response.headers['allow']}" in response.text
        assert http.head("/").status_code == 200
        assert http.get("/").text.startswith("dflash-tui")


def test_bodies_over_the_limit_and_compressed_ones() -> None:
    with running(demo_pair.new_engine(), ServerSettings(port=0, max_body=1000)) as server, server.http() as http:
        data = json.dumps(chat(user="x" * 2000))
        refused = http.post("/v1/messages", content=data)
        assert (refused.status_code, refused.json()["error"]["type"]) == (413, "request_too_large")
        pieces = http.post("/v1/chat/completions", content=iter([data[:1500].encode(), data[1500:].encode()]))
        assert pieces.status_code == 413
        packed = http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
        assert packed.status_code == 415
        assert http.get("/health").status_code == 200


@pytest.fixture
def locked() -> Iterator[Running]:
    with running(demo_pair.new_engine(), ServerSettings(port=0, keys=("other", KEY))) as found:
        yield found


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


def test_a_key_opens_and_is_never_written(
    locked: Running, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    import anthropic
    import openai

    log = Lines()
    for name in ("dflash_tui", "dflash_core", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, log])
        level = logger.level
        logger.setLevel(logging.DEBUG)
        request.addfinalizer(lambda logger=logger, level=level: logger.setLevel(level))
    with pytest.raises(openai.AuthenticationError) as refused:
        locked.openai("wrong").models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(anthropic.AuthenticationError):
        locked.anthropic("wrong").messages.create(**message())
    secret = "a secret of the user"
    body = message(messages=[{"role": "user", "content": secret}])
    assert locked.anthropic(KEY).messages.create(**body).stop_reason == "max_tokens"
    assert locked.openai(KEY).models.list().data
    with locked.http() as http:
        assert http.get("/props", headers={"api-key": KEY}).status_code == 200
        for path in ("/health", "/v1/health"):
            assert http.get(path).status_code == 200
        assert http.head("/").status_code == 200
        assert http.get("/metrics").status_code == 401
        assert http.get("/props", headers={"api-key": KEY}).text.count(KEY) == 0
        # Before the body is read.
        with socket.create_connection((http.base_url.host, http.base_url.port or 0)) as raw:
            raw.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 401 ")
    assert len(log.lines) >= 8
    assert not [line for line in log.lines if KEY in line or secret in line or "wrong" in line]
    assert KEY not in repr(locked.service.settings)


@pytest.mark.parametrize("prompts", [False, True])
def test_a_log_has_texts_on_request_alone(tmp_path: Path, prompts: bool, caplog: pytest.LogCaptureFixture) -> None:
    file, secret = tmp_path / "requests.jsonl", "a secret of the user"
    settings = ServerSettings(port=0, log=RequestLog(file, prompts=prompts))
    engine = ScriptedEngine(lambda prompt: "an answer")
    with running(engine, settings) as server, server.http() as http, caplog.at_level(logging.DEBUG):
        body = chat(messages=[{"role": "user", "content": secret}])
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        assert http.post("/v1/messages", json={"messages": 3}).status_code == 400
    assert file.stat().st_mode & 0o077 == 0
    answered, refused = map(json.loads, file.read_text().splitlines())
    assert (answered["path"], answered["model"], answered["tokens"]) == ("/v1/chat/completions", "demo", 3)
    assert (answered["status"], refused["status"]) == (200, 400)
    assert (secret in file.read_text()) == prompts
    assert answered.get("answer") == ("an answer" if prompts else None)
    assert not [record for record in caplog.records if secret in record.getMessage()]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/images/generations", "/v1/audio/speech"])
def test_what_the_model_cannot_do_is_said(server: Running, path: str) -> None:
    with server.http() as http:
        found = http.post(path, json={"input": "a", "model": "m"})
        other = http.post(path, json={"input": "a"}, headers={"anthropic-version": "2023-06-01"})
    assert (found.status_code, other.status_code) == (501, 501)
    assert found.headers["x-should-retry"] == "false"
    error = found.json()["error"]
    assert (error["type"], error["code"]) == ("not_supported_error", "not_supported")
    assert path in error["message"]
    assert other.json()["error"]["type"] == "api_error"


def test_a_target_may_name_the_server(server: Running) -> None:
    """Requests in absolute form, which clients send to a proxy, and which every server has to take."""
    expected = {
        ("http://localhost:1/health?a=b", "elsewhere.com"): 200,
        ("HTTP://127.0.0.1/v1/models", "localhost"): 200,
        ("http://elsewhere.com/v1/models", "localhost"): 403,
        ("http://localhost", "localhost"): 200,
        ("http://localhost/nowhere", "localhost"): 404,
    }
    host, _, port = server.address.removeprefix("http://").rpartition(":")
    for (target, name), status in expected.items():
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as lines:
            connection.sendall(f"GET {target} HTTP/1.1\r\nhost: {name}\r\n\r\n".encode())
            assert lines.readline().split()[1] == b"%d" % status, target


def test_pages_and_names_of_elsewhere_are_refused(server: Running) -> None:
    body, path = json.dumps(chat()), "/v1/chat/completions"
    with server.http() as http:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            assert http.get("/health", headers={"host": host}).status_code == 403
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080"):
            assert http.get("/health", headers={"host": host}).status_code == 200
        refused = http.post(path, content=body, headers={"origin": "http://evil.example", "content-type": "text/plain"})
        assert refused.status_code == 403
        check_error(refused, anthropic=False)
        assert http.options(path, headers={"origin": "http://evil.example"}).status_code == 403


def test_a_page_that_is_named_may_call() -> None:
    page = "http://page.example"
    allowed = ServerSettings(port=0, origins=(page,), hosts=("box.local",))
    with running(demo_pair.new_engine(), allowed) as server, server.http() as http:
        asking = {"origin": page, "access-control-request-method": "POST"}
        before = http.options("/v1/chat/completions", headers=asking)
        assert (before.status_code, before.headers["access-control-allow-origin"]) == (204, page)
        asked = {"content": json.dumps(chat())}
        as_text = http.post("/v1/chat/completions", **asked, headers={"origin": page, "content-type": "text/plain"})  # type: ignore[arg-type]
        assert as_text.status_code == 415
        done = http.post("/v1/chat/completions", **asked, headers={"origin": page, "content-type": "application/json"})  # type: ignore[arg-type]
        assert (done.status_code, done.headers["access-control-allow-origin"]) == (200, page)
        assert http.get("/health", headers={"host": "box.local:99"}).status_code == 200


FIELDS = (
    "messages", "prompt", "input", "model", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream",
    "tools", "tool_choice", "system", "thinking", "reasoning", "reasoning_effort", "dflash", "content", "role", "type",
    "text", "tool_calls", "function", "name", "arguments", "tokens", "stop_sequences", "output_config",
    "chat_template_kwargs", "stream_options", "n", "logit_bias",
    "instructions", "tool_use_id", "call_id", "output", "id", "parameters",
)  # fmt: skip
WORDS = ("user", "assistant", "system", "tool", "function", "message", "text", "tool_result", "tool_use", "thinking",
         "function_call", "function_call_output", "reasoning", "auto", "none", "enabled", "adaptive", "low", "m",
         "demo", "<|im_end|>", "", "a")  # fmt: skip
SCALARS = st.one_of(
    st.sampled_from(WORDS), st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(0, 9),
    st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=4),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)
ROLES = st.fixed_dictionaries({"role": st.sampled_from(WORDS[:4]), "content": VALUES}, optional={"tool_calls": VALUES})
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6).flatmap(
    lambda body: st.builds(
        lambda messages, limit: body | {"messages": messages, "input": messages, "max_tokens": limit, "model": "demo"},
        st.lists(ROLES, max_size=3),
        st.sampled_from([1, 2, 2, None, 0]),
    )
)


@settings(max_examples=120)
@given(path=st.sampled_from(OPENAI + ANTHROPIC), body=st.one_of(BODIES, VALUES))
def test_no_body_makes_the_server_fail(server: Running, path: str, body: Any) -> None:
    # An answer to a body that happens to be right ends soon.
    if isinstance(body, dict) and path in ("/v1/responses", "/v1/completions"):
        body = body | {"max_output_tokens": 2, "max_tokens": 2}
    with server.http() as http:
        response = http.post(path, content=json.dumps(body))
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        check_error(response, anthropic=path in ANTHROPIC)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"messages": [], "max_tokens": 0}', "max_tokens: found 0, expected a whole number >= 1"),
        (b'{"messages": [], "max_tokens": 0, "n": [}', "max_tokens: expected a whole number >= 1"),  # no JSON behind it
        (b'{"messages": [], "stop": ["a", ""]}', "stop[1]: expected a string of length >= 1"),
    ],
)
def test_a_number_beyond_its_limit_is_named(body: bytes, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(body, ChatRequest)
    assert caught.value.message == message
