"""What `rollstream word-count-rollouts` is asked for."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from rollstream.offline.command import kind_of
from rollstream.offline.settings import DEFAULT_FAIL_OVER, DEFAULT_MAX_ATTEMPTS
from rollstream.rows.write import Kind
from rollstream.schemas.prompt import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class WordCountRequest:
    """What is collected. `environment`: dotted path of an environment of one's own; "" is `word_count`.

    `api_key`: the document sends "dummy", which a proxy without keys takes. `sampling`: temperature and most tokens.
    """

    num_examples: int
    model: str
    base_url: str
    output: Path
    sampling: Sampling
    api_key: SecretStr
    concurrency: int = 2
    is_mock: bool = False
    environment: str = ""
    user_id: str = "rollstream"
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry_failed: bool = False
    fail_over: float = DEFAULT_FAIL_OVER
    overwrite: bool = False

    @property
    def outputs(self) -> list[Path]:
        """The output, and beside a directory of `datasets` the same rows as JSONL."""
        return [self.output] if self.kind != "hf" else [self.output, self.output.with_name(f"{self.output.name}.jsonl")]

    @property
    def kind(self) -> Kind:
        """By the output's name; raises `ConfigurationError` for another ending."""
        return kind_of(self.output)

    @property
    def where(self) -> str:
        """Who answers, for people."""
        return "scripted answers" if self.is_mock else self.base_url
