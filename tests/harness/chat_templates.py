# ruff: noqa: E501 (templates as they are written)
"""Chat templates as the common families of models write them, and tokenizers with the tokens that these need."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

_FOLDER: Final = Path(__file__).parent / "templates"
CHATML: Final = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN3: Final = (_FOLDER / "qwen3.jinja").read_text().removesuffix("\n")
LLAMA3: Final = (_FOLDER / "llama3.jinja").read_text().removesuffix("\n")
MISTRAL: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content']|trim + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' ~ message['content'].strip() ~ eos_token }}"
    "{% elif message['role'] == 'system' %}{{ '<<SYS>>\n' ~ message['content'] ~ '\n<</SYS>>\n\n' }}"
    "{% else %}{{ raise_exception('no role ' + message['role']) }}{% endif %}{% endfor %}"
)

MACROS: Final = r"""{%- macro turn(role, text, ends=['<|im_end|>', '\n']) %}{{ '<|im_start|>' ~ role }}
{{ text|replace('\r\n', '\n') }}{{ ends|join }}{% endmacro -%}
{%- for message in messages -%}
    {%- set body %}{% if loop.first %}  {{ message.content }}{% else %}{{ [message.content, '!']|join(' ')|trim }}{% endif %}{% endset -%}
    {%- if message.role == 'assistant' %}{% generation %}{{ turn(message.role, body) }}{% endgeneration %}
    {%- else %}{{ turn(message.role|upper|lower, body) }}{% endif -%}
{%- endfor -%}
{{ '<|im_start|>' }}assistant
"""

TEMPLATES: Final = {"ChatML": CHATML, "Qwen3": QWEN3, "Llama 3": LLAMA3, "Mistral": MISTRAL, "macros": MACROS}
SPECIAL: Final = (
    "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]",
)  # fmt: skip
ADDED: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CONTROL: Final = (*SPECIAL, *ADDED)
_TEXTS: Final = (
    "user system assistant tool What is 2 + 2? It is 4.\n\nYou may call functions. # Tools {'name': 'add'}",
    "<|im_start|> <|im_end|> </s> [INST] <tool_call> start_header_id eot_id think tool_response begin_of_text",
)


def byte_level() -> Tokenizer:
    """As Qwen's and Llama 3's: bytes, merged; control tokens are added to the vocabulary."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )  # fmt: skip
    made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return _with_controls(made)


def prepending() -> Tokenizer:
    """As Llama 2's and Mistral's: control tokens are in the vocabulary, and a part of the text begins with a space."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator([text.replace(" ", "▁") for text in _TEXTS], trainer)
    # Trained as special tokens, so that they get the first ids; but no text is one of them.
    state = json.loads(made.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    return _with_controls(Tokenizer.from_str(json.dumps(state)), strips=True)


def unigram() -> Tokenizer:
    """As T5's and Gemma's relatives: the likeliest pieces, of which control tokens are some too."""
    pieces = sorted({text[start : start + size] for text in _TEXTS for size in (1, 2, 4) for start in range(len(text))})
    vocabulary = [(piece, 0.0) for piece in SPECIAL[:3]] + [
        (piece.replace(" ", "▁"), -float(5 + 1 / len(piece))) for piece in pieces
    ]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=False))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    return _with_controls(made, normalized=True)


TOKENIZERS: Final = {"bytes": byte_level, "prepending": prepending, "unigram": unigram}


def write_chat_tokenizer(directory: Path, template: str, made: Tokenizer) -> None:
    """A tokenizer's files, as a model's directory has them."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = template
    wrapped.save_pretrained(directory)


def _with_controls(made: Tokenizer, *, strips: bool = False, normalized: bool = False) -> Tokenizer:
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    # As Phi-3's, which take the white space after them.
    stripping = [AddedToken(text, rstrip=strips, normalized=normalized) for text in ADDED]
    # As GPT-NeoX's: they save tokens, and no one is a control token.
    made.add_tokens([*stripping, AddedToken("    ", normalized=False), AddedToken("\n\n\n", normalized=False)])
    return made


def conversations(text: str) -> Sequence[tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]]:
    """Messages and tools that hold `text` wherever text from outside can stand."""
    call = {"id": "1", "type": "function", "function": {"name": f"add{text}", "arguments": f'{{"a": "{text}"}}'}}
    tool = {"type": "function", "function": {"name": f"add{text}", "description": text, "parameters": {text: [text]}}}
    user, answer = {"role": "user", "content": text}, {"role": "assistant", "content": text}
    return (
        ([user], []),
        ([{"role": "system", "content": text}, user, answer, user], []),
        ([user, {**answer, "tool_calls": [call]}, {"role": "tool", "content": text, "tool_call_id": "1"}], [tool]),
        ([{"role": f"user{text}", "content": "Hi"}], [tool]),
    )
