"""Where the servers of agents listen: the head server of `ng_run` knows, or the command line says it."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from rollstream.engines.http.replies import Reply
from rollstream.gym.options import HeadServer
from rollstream.schemas.errors import ConfigurationError

CONFIG_ROUTE: Final = "/global_config_dict_yaml"
"""Gives the merged configuration of all servers: YAML, within a JSON text."""
_AGENTS: Final = "responses_api_agents"
_SHOWN: Final = 20


class Addresses(Protocol):
    """Addresses of agents by their names."""

    def of(self, agent: str) -> str:
        """Such as http://127.0.0.1:9000. Raises `ConfigurationError` for an agent that is not known."""


class OneAddress:
    """One server for every agent."""

    def __init__(self, address: str) -> None:
        self._address = address

    def of(self, agent: str) -> str:
        return self._address


class HeadAddresses:
    """What a head server says."""

    def __init__(self, head: HeadServer, reply: Reply) -> None:
        """Raises `ConfigurationError` if it is no configuration."""
        from yaml import YAMLError, safe_load

        self._head = f"http://{head.host}:{head.port}"
        text = reply.body if reply.is_ok else None
        try:
            found = safe_load(text) if isinstance(text, str) else None
        except YAMLError:
            found = None
        if not isinstance(found, dict):
            raise ConfigurationError(
                f"{self._head}{CONFIG_ROUTE} gave no configuration (status {reply.status}: {reply.message[:200]}): "
                "start ng_run, or name the agent's server with +agent_url=http://HOST:PORT"
            )
        self._agents = {str(name): one for name, one in found.items() if isinstance(one, dict) and _AGENTS in one}

    def of(self, agent: str) -> str:
        """From the agent's `host` and `port` in the configuration."""
        if agent not in self._agents:
            known = ", ".join(sorted(self._agents)[:_SHOWN]) or "none"
            raise ConfigurationError(f"{self._head} runs no agent {agent!r}; it runs {known}: correct +agent_name")
        place = _place(self._agents[agent][_AGENTS])
        host, port = place.get("host"), place.get("port")
        if not isinstance(host, str) or type(port) is not int or not 0 < port < 2**16:
            raise ConfigurationError(f"{self._head} gives no host and port of agent {agent!r}, but {host!r}, {port!r}")
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"


def _place(implementations: Any) -> Mapping[str, Any]:
    """The one implementation of a server."""
    found = list(implementations.values()) if isinstance(implementations, dict) else []
    return found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
