"""Methods for vLLM's worker processes, one a GPU: load a weight version, and check that the head is the new one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollstream.process.parent import die_with_ancestor

if TYPE_CHECKING:
    import torch

_NUM_PROBES = 2
_NUM_PROBED_TOKENS = 256
_HEAD_NAMES = ("lm_head.weight", "model.embed_tokens.weight")


class ReloadExtension:
    """Methods that vLLM adds to its worker (`worker_extension_cls`). `collective_rpc` calls them by name."""

    model_runner: Any
    parallel_config: Any

    def begin(self, generator: int) -> None:
        """Prepare a worker that has started. It ends when the generator dies, also of kill -9.

        With several GPUs vLLM's engine process is between them. On another machine the generator is none of ours.
        """
        if self.parallel_config.node_rank == 0:
            die_with_ancestor(generator)
        if self.model_runner.device.type == "cpu":
            _let_samples_be_discarded(self.model_runner)

    def load_version(self, path: str) -> str | None:
        """Replace the weights by those in directory `path`. Returns what went wrong, None if nothing did.

        Errors are returned, not raised, because vLLM loses the type of its worker's exceptions.
        """
        try:
            return self._load(Path(path))
        except (AssertionError, KeyError, OSError, RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    def head_differs(self, path: str) -> str | None:
        """How the running output head differs from the one in directory `path`; None if it does not."""
        problems = (_head_problem(head, Path(path)) for head in self._heads())
        return next((problem for problem in problems if problem is not None), None)

    def _load(self, path: Path) -> str | None:
        self.reload_weights(weights_path=str(path))  # type: ignore[attr-defined]  # vLLM's Worker has it
        for head in self._heads():
            # On a CPU, vLLM packs linear layers into oneDNN handles. A reload rebuilds the handles only of tensors that
            # it loads by name. A tied head is loaded as the embedding, so its handle would keep the old weights.
            if hasattr(head, "cpu_linear"):
                head.quant_method.process_weights_after_loading(head)
        return self.head_differs(str(path))

    def _heads(self) -> list[Any]:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        return [module for module in self.model_runner.get_model().modules() if isinstance(module, ParallelLMHead)]


def _let_samples_be_discarded(runner: Any) -> None:
    """Have vLLM pass over the seeded generators of samples that it discards.

    A prompt that is read in parts gives a sample for each part, of which only the last counts. For the others vLLM 0.32
    sets the request's generator back (`GPUModelRunner._bookkeeping_sync`). A CPU's has no offset: the error would end
    the engine. Here it draws on instead: another sample of the same distribution.
    """
    bookkeeping = runner._bookkeeping_sync

    def without_setting_back(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        discarded = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        held = {row: batch.generators.pop(row) for row in discarded if row in batch.generators}
        try:
            return bookkeeping(*args, **kwargs)
        finally:
            batch.generators.update(held)

    runner._bookkeeping_sync = without_setting_back


def _head_problem(head: Any, path: Path) -> str | None:
    """Compare what the running head computes with a product of the file's rows.

    Each GPU has rows of its own of the head, and compares these.

    This finds the error that reloading is known to make. It does not show that every tensor is the new one: only
    comparing logprobs does, see `tests/engines/test_behavior_logprobs.py`.
    """
    import torch

    first = head.shard_indices.org_vocab_start_index
    last = min(first + _NUM_PROBED_TOKENS, head.shard_indices.org_vocab_end_index)
    weight = head.weight
    rows = _head_rows(path, first, last).to(weight)
    hidden = torch.randn(_NUM_PROBES, rows.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.inference_mode():
        found = head.quant_method.apply(head, hidden)[:, : last - first].float()
        wanted = (hidden @ rows.T).float()
    # Both products sum in float32 and round to the weights' type.
    rounding = max(torch.finfo(weight.dtype).eps, rows.shape[1] ** 0.5 * torch.finfo(torch.float32).eps)
    difference = float((found - wanted).abs().max())
    if torch.equal(weight[: last - first], rows) and difference <= 4 * rounding * float(wanted.abs().max()):
        return None
    return f"the output head is not that of {path}: its products are off by {difference:.3g}"


def _head_rows(path: Path, first: int, last: int) -> "torch.Tensor":
    """Rows [first, last) of the output head in the files; of the embedding if the head is tied to it."""
    from safetensors import safe_open

    for name in _HEAD_NAMES:
        for file in sorted(path.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                if name in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
                    rows: torch.Tensor = tensors.get_slice(name)[first:last]
                    return rows
    raise RuntimeError(f"{path} has none of {_HEAD_NAMES}: cannot prove that the head was loaded")
