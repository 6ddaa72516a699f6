"""Weight versions on disk: written whole or not at all, verified when read, deleted at once."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.weight_files import StoredWeights
from rollstream.history.weight_store import open_weight_store
from rollstream.schemas.errors import CorruptWeightsError, WeightStoreError
from rollstream.schemas.weights import WeightFile
from tests.harness.full_disk import room_for


def save_small(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights" * 100)
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer" / "vocab.json").write_text("{}")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryWeightStore:
    return DirectoryWeightStore(tmp_path / "weights")


@pytest.fixture
def stored(store: DirectoryWeightStore) -> StoredWeights:
    return store.write("3-abc", save_small)


def test_a_written_version_is_fetched_with_all_its_files(store: DirectoryWeightStore, stored: StoredWeights) -> None:
    directory = store.fetch(stored.uri, stored.files)
    assert directory.name == "3-abc"
    assert [file.name for file in stored.files] == ["model.safetensors", "tokenizer/vocab.json"]
    assert (directory / "model.safetensors").read_bytes() == b"weights" * 100


def test_a_path_with_spaces_and_percent_signs_survives_the_uri(tmp_path: Path) -> None:
    store = open_weight_store(tmp_path / "my run 100%")
    stored = store.write("0-abc", save_small)
    assert store.fetch(stored.uri, stored.files) == tmp_path / "my run 100%" / "0-abc"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"W" + path.read_bytes()[1:]), r"model\.safetensors: expected sha256 \w+, got "),
        (lambda path: os.truncate(path, 99), r"model\.safetensors: expected 700 bytes, got 99"),
        (lambda path: path.unlink(), "got none"),
    ],
    ids=["a flipped byte", "cut", "missing"],
)
def test_a_damaged_file_is_reported_with_what_was_expected_and_got(
    store: DirectoryWeightStore, stored: StoredWeights, damage: Callable[[Path], None], said: str
) -> None:
    damage(store.fetch(stored.uri, stored.files) / "model.safetensors")
    with pytest.raises(CorruptWeightsError, match=said):
        store.fetch(stored.uri, stored.files)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(
            (name, "lies outside of")
            for name in ("../../secret", "/etc/hostname", "..", "a/../../../secret", "model\0")
        ),
        ("link", "lies outside of"),
        *((name, "is no regular file|got none") for name in ("", ".", "tokenizer", "pipe", "absent")),
    ],
)
def test_a_file_name_cannot_lead_out_of_the_version_or_to_what_is_no_file(
    store: DirectoryWeightStore, stored: StoredWeights, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "secret").write_bytes(b"weights" * 100)
    (tmp_path / "weights" / "3-abc" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "weights" / "3-abc" / "pipe")
    with pytest.raises(CorruptWeightsError, match=said):
        store.fetch(stored.uri, renamed(stored, name))


@pytest.mark.parametrize(
    "uri",
    [
        "file:///dev",
        "file:///etc",
        "{root}",
        "{root}/../outside",
        "{root}/link",
        "{root}-beside/0-abc",
        "file:///a%00b",
        "file://[",
        "file://other-host{path}/3-abc",
        "relative/3-abc",
        "s3://bucket/3-abc",
        "{root}/" + "x" * 10_000_000,
    ],
    ids=lambda uri: uri[:40],
)
def test_a_directory_outside_of_the_store_is_refused_unseen(
    store: DirectoryWeightStore, stored: StoredWeights, tmp_path: Path, uri: str
) -> None:
    """The files are there, with the right sizes and sums: only the place is wrong."""
    root = tmp_path / "weights"
    for outside in (tmp_path / "outside", tmp_path / "weights-beside" / "0-abc"):
        shutil.copytree(root / "3-abc", outside)
    (root / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptWeightsError) as refused:
        store.fetch(uri.format(root=root.as_uri(), path=root), stored.files)
    assert len(str(refused.value)) < 2_000
    if "xxx" not in uri:
        assert "does not lie below" in str(refused.value) or "is no directory of this machine" in str(refused.value)


def test_a_store_behind_a_link_is_read_under_either_name(
    store: DirectoryWeightStore, stored: StoredWeights, tmp_path: Path
) -> None:
    (tmp_path / "linked").symlink_to(tmp_path / "weights")
    linked = DirectoryWeightStore(tmp_path / "linked")
    for directory in (tmp_path / "linked" / "3-abc", tmp_path / "weights" / "3-abc"):
        assert linked.fetch(directory.as_uri(), stored.files) == directory


def test_a_record_names_every_file_with_tensors_and_each_once(
    store: DirectoryWeightStore, stored: StoredWeights, tmp_path: Path
) -> None:
    tensors, vocabulary = stored.files
    again = tensors.model_copy(update={"name": f"./{tensors.name}"})
    for files in ((), (tensors, vocabulary, tensors), (tensors, again)):
        with pytest.raises(CorruptWeightsError, match="at least one, and each once"):
            store.fetch(stored.uri, files)
    (tmp_path / "weights" / "3-abc" / "model-2.safetensors").write_bytes(b"not named, so without a sum")
    with pytest.raises(CorruptWeightsError, match=r"holds \['model-2.safetensors'\]"):
        store.fetch(stored.uri, stored.files)


def renamed(stored: StoredWeights, name: str) -> list[WeightFile]:
    """The version's files, and its first one under another name."""
    return [*stored.files, stored.files[0].model_copy(update={"name": name})]


def test_a_save_that_fails_leaves_nothing(store: DirectoryWeightStore, stored: StoredWeights, tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        save_small(directory)
        raise ValueError("no tensors")

    with pytest.raises(WeightStoreError, match="ValueError: no tensors"):
        store.write("4-abc", fail)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["3-abc"]


def test_what_a_writer_killed_in_mid_write_leaves_is_no_version_and_is_swept(tmp_path: Path) -> None:
    with a_writer_in_mid_write(tmp_path) as writer:
        writer.kill()
        writer.wait(10)
    assert not (tmp_path / "5-abc").exists()
    [half] = tmp_path.iterdir()
    assert half.name.startswith(".writing-5-abc-")
    (tmp_path / ".deleted-4-abc-0").mkdir()
    DirectoryWeightStore(tmp_path).sweep()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_only_stopped_finishes_its_version(tmp_path: Path) -> None:
    with a_writer_in_mid_write(tmp_path) as writer:
        writer.send_signal(signal.SIGSTOP)
        DirectoryWeightStore(tmp_path).sweep()
        writer.send_signal(signal.SIGCONT)
        writer.communicate(b"go on\n", timeout=10)
        assert writer.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["5-abc"]


def test_sweeping_leaves_versions_and_what_is_nobody_elses_alone(store: DirectoryWeightStore, tmp_path: Path) -> None:
    store.sweep()  # before anything is there
    stored = store.write("3-abc", save_small)
    (tmp_path / "weights" / "notes.txt").write_text("a person's")
    store.sweep()
    store.fetch(stored.uri, stored.files)
    assert (tmp_path / "weights" / "notes.txt").exists()


@contextmanager
def a_writer_in_mid_write(root: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has written half a version, and writes the rest when it is given a line."""
    script = (
        "import sys; from pathlib import Path\n"
        "from rollstream.history.directory_store import DirectoryWeightStore\n"
        "def save(directory):\n"
        "    (directory / 'model.safetensors').write_bytes(b'half'); print('half', flush=True); sys.stdin.readline()\n"
        "DirectoryWeightStore(Path(sys.argv[1])).write('5-abc', save)\n"
    )
    command = [sys.executable, "-c", script, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        try:
            yield writer
        finally:
            writer.kill()


def torch_save(directory: Path) -> None:
    import torch

    torch.save(torch.zeros(100_000), directory / "state.pt")


def safetensors_save(directory: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"weights": torch.zeros(100_000)}, directory / "model.safetensors")


def test_a_full_disk_says_where_and_what_to_do(store: DirectoryWeightStore) -> None:
    def save_to_full_disk(directory: Path) -> None:
        (directory / "model.safetensors").symlink_to("/dev/full")
        (directory / "model.safetensors").write_bytes(b"weights")

    with pytest.raises(WeightStoreError, match=r"No space left on device; \d+ MiB are free; free space or move"):
        store.write("6-abc", save_to_full_disk)


@pytest.mark.parametrize("save", [torch_save, safetensors_save])
def test_a_full_disk_is_known_in_the_words_of_every_library(
    store: DirectoryWeightStore, tmp_path: Path, save: Callable[[Path], None]
) -> None:
    with room_for(4096), pytest.raises(WeightStoreError, match=r"cannot write below .*MiB are free; free space"):
        store.write("6-abc", save)
    assert not list((tmp_path / "weights").iterdir())


def test_a_root_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("a file, not a directory")
    with pytest.raises(WeightStoreError, match="check the directory"):
        DirectoryWeightStore(tmp_path / "weights").write("0-abc", save_small)


def test_the_same_version_is_not_written_twice(store: DirectoryWeightStore, stored: StoredWeights) -> None:
    with pytest.raises(WeightStoreError, match="3-abc exists already"):
        store.write("3-abc", save_small)
    store.fetch(stored.uri, stored.files)


def test_a_deleted_version_is_gone_and_may_be_deleted_again(store: DirectoryWeightStore, stored: StoredWeights) -> None:
    store.delete("3-abc")
    with pytest.raises(CorruptWeightsError):
        store.fetch(stored.uri, stored.files)
    store.delete("3-abc")  # a trainer that took over did it first


def test_versions_are_found_by_how_their_writers_incarnation_begins(
    store: DirectoryWeightStore, tmp_path: Path
) -> None:
    for version, incarnation in ((3, "ab01"), (4, "ab02"), (4, "cd01")):
        store.write(f"{version}-{incarnation}", save_small)
    for other in ("ab-notes", "x-ab01", ".writing-5-ab01-0"):
        (tmp_path / "weights" / other).mkdir()
    assert store.names("ab") == {"3-ab01", "4-ab02"}
