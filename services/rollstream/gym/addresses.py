"""Where the servers of agents listen: the head server of `ng_run` knows, or the command line says it.

Whoever listens on the head server's port may name any address. So only this machine and the head server's are asked.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from rollstream.engines.http.replies import Reply
from rollstream.gym.options import HeadServer
from rollstream.http.keys import is_loopback
from rollstream.schemas.errors import ConfigurationError

CONFIG_ROUTE: Final = "/global_config_dict_yaml"
"""Gives the merged configuration of all servers: YAML, within a JSON text."""
AGENTS: Final = "responses_api_agents"
RESOURCES: Final = "resources_servers"
_SHOWN: Final = 20


class Addresses(Protocol):
    """Addresses of servers by their names."""

    def of(self, name: str) -> str:
        """Such as http://127.0.0.1:9000. Raises `ConfigurationError` for a server that is not known."""


class OneAddress:
    """One server for every name."""

    def __init__(self, address: str) -> None:
        self._address = address

    def of(self, name: str) -> str:
        return self._address


class HeadAddresses:
    """What a head server says."""

    def __init__(self, head: HeadServer, kind: str, reply: Reply) -> None:
        """Those of `kind`. Raises `ConfigurationError` if it is no configuration."""
        from yaml import YAMLError, safe_load

        self._host, self._head = head.host, f"http://{head.host}:{head.port}"
        text = reply.body if reply.is_ok else None
        try:
            found = safe_load(text) if isinstance(text, str) else None
        except YAMLError:
            found = None
        if not isinstance(found, dict):
            raise ConfigurationError(
                f"{self._head}{CONFIG_ROUTE} gave no configuration (status {reply.status}: {reply.message[:200]}): "
                "start NeMo Gym's ng_run, or name the server itself with +agent_url (+resources_server_url) "
                "=http://HOST:PORT"
            )
        self._kind = kind
        self._servers = {str(name): one[kind] for name, one in found.items() if isinstance(one, dict) and kind in one}

    def of(self, name: str) -> str:
        """From the server's `host` and `port` in the configuration."""
        if name not in self._servers:
            known = ", ".join(sorted(self._servers)[:_SHOWN]) or "none"
            raise ConfigurationError(f"{self._head} runs no {self._kind} {name!r}; it runs {known}: correct the name")
        url = _url(_place(self._servers[name]), f"{name!r} of {self._head}")
        if not may_be_asked(url, self._host):
            raise ConfigurationError(
                f"{self._head} says that {name!r} listens at {url[:200]}: only this machine and the head server's are "
                "asked; if it is right, name it with +agent_url (+resources_server_url) =http://HOST:PORT"
            )
        return url


def may_be_asked(url: str, head_host: str) -> bool:
    """Whether the address is one of this machine, or of the head server's, which the command line names."""
    try:
        found = urlsplit(url)
        host = found.hostname or ""
    except ValueError:
        return False
    return found.scheme == "http" and (is_loopback(host) or host == head_host)


def url_of(config: Mapping[str, Any], kind: str, name: str) -> str:
    """The address of a server in a configuration. Raises `ConfigurationError` if it has none."""
    return _url(settings_of(config, kind, name), repr(name))


def settings_of(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """What a configuration says of a server, its address included."""
    return _place(config[name][kind])


def _url(place: Mapping[str, Any], what: str) -> str:
    host, port = place.get("host"), place.get("port")
    if not isinstance(host, str) or type(port) is not int or not 0 < port < 2**16:
        raise ConfigurationError(f"no host and port of {what}, but {host!r}, {port!r}")
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"


def _place(implementations: Any) -> Mapping[str, Any]:
    """The one implementation of a server."""
    found = list(implementations.values()) if isinstance(implementations, dict) else []
    return found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
