"""Writes a tiny Qwen3 model with random weights and a tokenizer of single characters, for demo, benches and tests."""

import string
from pathlib import Path

VOCABULARY = (
    "<pad>",
    "<eos>",
    "<unk>",
    *string.digits,
    *string.ascii_lowercase,
    "\n",
    *" =.,:;!?+-*/()[]<>'\"_#%&",
)
_PAD, _EOS, _UNK = VOCABULARY[:3]
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_tiny_model(
    path: Path,
    *,
    seed: int,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    ffn: int = 512,
    tie_word_embeddings: bool = True,
    max_length: int = 512,
) -> None:
    """Write config, random float32 weights and tokenizer into directory `path`; 1.06 M parameters by default.

    `max_length`: most tokens of prompt and answer together. `AutoModelForCausalLM`, `AutoTokenizer` and vLLM load it.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=ffn,
        max_position_embeddings=max_length,
        tie_word_embeddings=tie_word_embeddings,
        pad_token_id=VOCABULARY.index(_PAD),
        eos_token_id=VOCABULARY.index(_EOS),
        bos_token_id=None,
        dtype="float32",
    )
    # The caller's random state must stay as it is.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(path)
    write_tokenizer(path, max_length=max_length)


def write_tokenizer(path: Path, *, max_length: int) -> None:
    """Write the tokenizer of single characters. Characters outside the vocabulary become `<unk>`."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    ids = {text: token for token, text in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(vocab=ids, unk_token=_UNK))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_EOS,
        unk_token=_UNK,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = _CHAT_TEMPLATE
    wrapped.save_pretrained(path)
