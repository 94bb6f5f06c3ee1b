"""Ask one question with tools by an agent library: `python -m tests.recorded.libraries NAME URL [list]`.

With `list` it prints the server's models instead, by the library's own way or by the client that it brings.
Runs in the library's environment, in a folder that it may change.
"""

import json
import sys
from typing import Any

from tests.recorded.tools import bash, read_file, write_file

QUESTION = "List the files and write made.txt."
KEY, MODEL = "sk-dummy", "local-model"
TOOLS = (bash, read_file, write_file)
MOST_TURNS = 8


def ask_pydantic_ai(url: str, *, responses: bool) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if responses else OpenAIChatModel
    model = kind(MODEL, provider=OpenAIProvider(base_url=url, api_key=KEY))
    agent = Agent(model, tools=list(TOOLS), system_prompt="You work with files.", instructions="Be brief.")
    return str(agent.run_sync(QUESTION).output)


def ask_openai_agents(url: str) -> str:
    from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=url, api_key=KEY))
    tools = [function_tool(tool) for tool in TOOLS]
    agent = Agent(name="worker", instructions="You work with files.", model=MODEL, tools=tools)
    return str(Runner.run_sync(agent, QUESTION).final_output)


def ask_langchain(url: str) -> str:
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model = ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, streaming=True)
    agent = create_react_agent(model, list(TOOLS), prompt="You work with files.")
    return str(agent.invoke({"messages": [("user", QUESTION)]})["messages"][-1].content)


def ask_litellm(url: str) -> str:
    import litellm

    functions = {tool.__name__: tool for tool in TOOLS}
    offered = [
        {
            "type": "function",
            "function": {
                "name": tool.__name__,
                "description": tool.__doc__,
                "parameters": {
                    "type": "object",
                    "properties": {
                        name: {"type": "string"} for name in tool.__annotations__ if name != "return"
                    },
                    "required": [name for name in tool.__annotations__ if name != "return"],
                },
            },
        }
        for tool in TOOLS
    ]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(MOST_TURNS):
        stream = litellm.completion(
            model=f"openai/{MODEL}", api_base=url, api_key=KEY, messages=messages, tools=offered, stream=True
        )
        said = litellm.stream_chunk_builder(list(stream), messages=messages).choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return str(said.content)
        for call in said.tool_calls:
            result = functions[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise RuntimeError("the model never came to an end")


def list_models(name: str, url: str) -> str:
    if name == "litellm":
        import litellm

        found = litellm.get_valid_models(
            check_provider_endpoint=True, custom_llm_provider="openai", api_key=KEY, api_base=url
        )
        return "\n".join(found)
    if name == "langchain":
        from langchain_openai import ChatOpenAI

        client = ChatOpenAI(model=MODEL, base_url=url, api_key=KEY).root_client
    else:
        from openai import OpenAI

        client = OpenAI(base_url=url, api_key=KEY)
    return "\n".join(model.id for model in client.models.list())


def main(name: str, url: str, *what: str) -> None:
    if what == ("list",):
        print(list_models(name, url))  # noqa: T201
    elif name.startswith("pydantic-ai"):
        print(ask_pydantic_ai(url, responses=name.endswith("-responses")))  # noqa: T201
    else:
        asks = {"openai-agents": ask_openai_agents, "langchain": ask_langchain, "litellm": ask_litellm}
        print(asks[name](url))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
