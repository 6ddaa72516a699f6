"""How a producer ends whose file is deleted while it submits rows, and one that is told to while no broker answers."""

import json
import socket
from pathlib import Path

from rollstream.schemas.topics import SERVE_PROMPTS
from tests.harness.forking import start_command
from tests.harness.running import a_run
from tests.harness.waits import wait_until


def test_a_producer_whose_file_was_deleted_says_so_in_one_line_and_the_next_one_says_what_to_change(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    row = {"messages": [{"role": "user", "content": "2+2="}], "reference_answer": "4"}
    rows.write_text("".join(json.dumps({"id": str(number), **row}) + "\n" for number in range(3)))
    with a_run(kafka, topic_prefix, tmp_path) as run:
        run.tables["producer"] = {
            "source": "jsonl", "path": rows, "purpose": "serve", "environment": "math", "epochs": 1_000_000,
        }  # fmt: skip
        first = run.start("producer")
        wait_until(lambda: len(run.records(SERVE_PROMPTS)) > 6, "a second epoch")
        rows.unlink()
        assert first.wait() == 70
        last = [json.loads(line) for line in first.said().splitlines() if line.startswith("{")][-1]
        assert f"No such file or directory: '{rows}'" in last["message"]
        assert "exception" not in last
        second = run.start("producer")
        assert second.wait() == 78
        assert f"cannot read {rows}" in second.said()


def test_a_producer_that_is_told_to_end_does_so_while_no_broker_answers(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        tables = f'[kafka]\nbootstrap_servers = "{address}"\n[producer]\nsource = "feedback"\n'
        config.write_text(f'run = "mute"\n{tables}')
        producer = start_command("producer", "--config", str(config), log=tmp_path / "log")
        wait_until(lambda: "waiting for 25 s more" in producer.said() or producer.has_ended, producer.said)
        # Of the 25 s only ten are left to it then.
        assert producer.terminate(20) == 0, producer.said()
