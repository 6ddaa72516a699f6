"""The Reasoning Cache actor waits for its services, whatever starts first, and calls no model for it."""

import asyncio

import pytest
from aiohttp import web

from rollstream.local.ports import free_ports
from rollstream.process.masking import SECRETS
from rollstream.rc_actor.reading import read_settings
from rollstream.rc_actor.ready import wait_for_services
from rollstream.rc_actor.settings import RCSettings
from rollstream.schemas.errors import ConfigurationError, EngineDeadError
from tests.harness.fake_openai import fake_openai
from tests.harness.threads import application
from tests.harness.waits import in_a_loop, until


def settings(*words: str) -> RCSettings:
    return read_settings("test_rc", ["output_dir=out", "model_path=tiny", *words])


@in_a_loop
async def test_servers_of_both_models_and_the_verifier_may_start_later() -> None:
    verifier_port = free_ports(1)[0]
    with fake_openai(kind="vllm", is_ready=False) as model, fake_openai(kind="vllm", is_ready=False) as other:
        waiting = asyncio.create_task(
            wait_for_services(
                settings(
                    f"me.llm_urls={model.url}",
                    f"me.summarization_llm_urls={other.url}",
                    "summarization_model_path=tiny",
                    f"environment.verifier_url=http://127.0.0.1:{verifier_port}",
                    "me.ready_seconds=60",
                )
            )
        )
        await until(lambda: model.routes and other.routes, "both are asked", task=waiting)
        model.is_ready = other.is_ready = True
        asked: list[str] = []

        async def health(request: web.Request) -> web.Response:
            asked.append(request.path)
            return web.Response(status=503 if len(asked) == 1 else 200)

        assert not waiting.done()
        verifier = web.Application()
        verifier.router.add_get("/health", health)
        with application(verifier, verifier_port):
            await waiting
    assert asked == ["/health", "/health"]
    assert model.num_model_calls == other.num_model_calls == 0
    assert not model.asked
    assert not other.asked


@pytest.mark.parametrize("key", ["me.llm_urls", "environment.verifier_url"])
@in_a_loop
async def test_what_does_not_come_is_named_after_a_bounded_time(key: str) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with fake_openai(kind="vllm") as model:
        words = [f"me.llm_urls={model.url}", f"{key}={nobody}", "me.ready_seconds=1"]
        with pytest.raises(EngineDeadError, match=r"ready within 1(\.0)? s"):
            await wait_for_services(settings(*words))


@in_a_loop
async def test_a_refused_key_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RC_KEY", "wrong-key")
    with fake_openai(kind="vllm", api_key="right-key") as model, pytest.raises(ConfigurationError) as refused:
        await wait_for_services(settings(f"me.llm_urls={model.url}", "me.api_key_variable=RC_KEY"))
    said = SECRETS.masked(str(refused.value))  # as the command says it
    assert "refuse" in said
    assert "wrong-key" not in said
