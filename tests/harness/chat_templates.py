# ruff: noqa: E501 (templates as they are written)
"""Chat templates as the common families of models write them, and tokenizers with the tokens that these need."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CHATML: Final = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN3: Final = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call functions.\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nReturn calls within <tool_call></tool_call>:\n<tool_call>\n{}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA3: Final = r"""{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

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
