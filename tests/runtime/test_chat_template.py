from datetime import datetime
from pathlib import Path

import pytest

from ramet.runtime.prompts import jinja_template
from ramet.runtime.prompts.chat_template import ChatTemplate
from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.protocol import ROLES, ChatTemplateError

from .tiny_tokenizers import write_gguf

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "<|im_start|>system\nBe nice.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start|>system<|end|>\n\nToday Date: " + date + "\n\n" + system + "<|eot|>" }}
{%- for m in messages %}
{{- '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\n\n' }}{%- endif %}"""
MISTRAL = """{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content + '\n\n' %}{%- set turns = messages[1:] %}
{%- else %}{%- set system = '' %}{%- set turns = messages %}{%- endif %}
{{- bos_token }}
{%- for m in turns %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant/user/assistant') }}
{%- endif %}
{%- if m.role == 'user' %}
{{- '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}
{%- elif m.role == 'assistant' %}{{- ' ' + m.content + eos_token }}
{%- else %}{{- raise_exception('only user and assistant roles are supported') }}{%- endif %}
{%- endfor %}"""
MISTRAL_LAST = MISTRAL.replace("if loop.first", "if loop.last")
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for m in messages %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate') }}{% endif %}
{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}
{{ '<turn>' + role + '\n' + m['content'] | trim + '<end>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"""
QWEN3 = """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set content = m.content.split('</think>')[-1].lstrip('\n') %}
{%- if loop.index0 > ns.last %}{%- set content = '<think>\n\n</think>\n\n' + content %}{%- endif %}
{{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}
{%- endif %}{%- endif %}"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return Tokenizer.from_gguf(write_gguf(path, bos=3, eos=4))  # <s> and </s>


def conversation(template: ChatTemplate, *turns: tuple[str, str], generate: bool = True) -> str:
    text, previous = "", None
    for role, content in turns:
        text += template.prefix(role, previous) + content + template.suffix(role)
        previous = role
    return text + (template.prefix("assistant", previous, generate=True) if generate else "")


def test_chatml_adds_its_default_system_message_at_the_first_turn(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(CHATML, tokenizer)
    default = "<|im_start|>system\nBe nice.<|im_end|>\n"
    assert template.prefix("user") == default + "<|im_start|>user\n"
    assert template.prefix("user", "system") == "<|im_start|>user\n"
    assert template.prefix("system") == "<|im_start|>system\n"
    assert template.prefix("assistant", None, generate=True) == default + "<|im_start|>assistant\n"
    assert {template.suffix(role) for role in ROLES} == {"<|im_end|>\n"}
    assert template.stop_ids() == {tokenizer.special_ids["<|im_end|>"]}
    assert template.is_append_only
    assert template.differences == ""


def test_a_conversation_turn_by_turn_is_what_transformers_renders(tokenizer: Tokenizer) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    turns = (("system", "S"), ("user", "U 1"), ("assistant", "A"), ("user", "U 2"))
    for source in (CHATML, LLAMA3, MISTRAL, QWEN3):
        messages = [{"role": role, "content": content} for role, content in turns]
        (rendered,), _ = render_jinja_template(
            conversations=[messages],
            chat_template=source,
            add_generation_prompt=True,
            **tokenizer.named_tokens,
        )
        assert conversation(ChatTemplate(source, tokenizer), *turns) == rendered


def test_llama3_begins_with_bos_and_the_date(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2030, 1, 2, 3, 4)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Clock":
            return cls(now.year, now.month, now.day, now.hour)

    monkeypatch.setattr(jinja_template, "datetime", Clock)
    template = ChatTemplate(LLAMA3, tokenizer)
    head = "<s><|start|>system<|end|>\n\nToday Date: 02 Jan 2030\n\n"
    assert template.prefix("system") == head
    assert template.prefix("user") == head + "<|eot|><|start|>user<|end|>\n\n"
    assert template.suffix("user") == "<|eot|>"
    assert not template.is_append_only
    assert template.differences == "it strips white space around contents"
    now = datetime(2030, 1, 3)
    assert "03 Jan 2030" in template.prefix("system")


def test_mistral_folds_the_system_message_into_the_user_turn_and_nowhere_else(
    tokenizer: Tokenizer,
) -> None:
    template = ChatTemplate(MISTRAL, tokenizer)
    text = conversation(template, ("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V"))
    assert text == "<s>[INST] S\n\nU [/INST] A</s>[INST] V [/INST]"
    assert template.stop_ids() == {tokenizer.special_ids["</s>"]}
    with pytest.raises(ChatTemplateError, match="alternate"):
        template.prefix("user", "user")
    with pytest.raises(ChatTemplateError, match="'assistant' after 'system'"):
        template.prefix("assistant", "system")
    with pytest.raises(ChatTemplateError, match="'assistant' after 'system'"):
        template.prefix("assistant", "system", generate=True)
    with pytest.raises(ChatTemplateError, match="'assistant' as the first turn"):
        template.prefix("assistant", None, generate=True)


def test_a_template_that_moves_the_system_message_says_that_it_differs(
    tokenizer: Tokenizer,
) -> None:
    template = ChatTemplate(MISTRAL_LAST, tokenizer)
    assert not template.is_append_only
    assert "system, user, assistant, user" in template.differences


def test_gemma_refuses_a_system_message_in_the_template_s_words(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(GEMMA, tokenizer)
    with pytest.raises(ChatTemplateError, match="'system' as the first turn: System role not supp"):
        template.prefix("system")
    text = conversation(template, ("user", "U"), ("assistant", "A"), ("user", "V"))
    assert text == "<s><turn>user\nU<end>\n<turn>model\nA<end>\n<turn>user\nV<end>\n<turn>model\n"
    assert "strips" in template.differences
    assert template.stop_ids() == frozenset()  # this tokenizer has no such special token


def test_qwen3_drops_earlier_thinking_and_keeps_the_turns(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(QWEN3, tokenizer)
    text = conversation(template, ("user", "U"), ("assistant", "A"), ("user", "V"))
    assert text == (
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
        "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not template.is_append_only
    assert "thinking" in template.differences


def test_tool_turns_share_one_user_turn(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(QWEN3, tokenizer)
    begin, between = template.prefix("tool", "assistant"), template.prefix("tool", "tool")
    assert begin == "<|im_start|>user\n<tool_response>\n"
    assert template.suffix("tool") + between == "\n</tool_response>\n<tool_response>\n"
    after = template.suffix("tool") + template.prefix("assistant", "tool", generate=True)
    assert after == "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_a_generation_prompt_unlike_a_past_turn_is_used_and_named(tokenizer: Tokenizer) -> None:
    source = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
    template = ChatTemplate(source, tokenizer)
    assert template.prefix("assistant", "user") == "<|im_start|>assistant\n"
    assert template.prefix("assistant", "user", generate=True) == "<|im_start|>assistant\n<think>\n"
    assert template.prefix("assistant", None, generate=True).endswith("assistant\n<think>\n")
    assert "generation prompt" in template.differences


def test_a_turn_never_ends_inside_a_special_token(tokenizer: Tokenizer) -> None:
    source = CHATML + "{% if not add_generation_prompt %}{{ '<|endoftext|>' }}{% endif %}"
    template = ChatTemplate(source, tokenizer)
    assert template.suffix("user") == "<|im_end|>\n"  # though <| goes on in every case
    assert template.prefix("assistant", "user") == "<|im_start|>assistant\n"
    assert template.is_append_only


def test_a_template_without_generation_prompt_goes_on_after_the_user(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(MISTRAL, tokenizer)
    assert template.prefix("assistant", "user", generate=True) == ""
    assert template.prefix("assistant", "user") == " "
    assert not template.is_append_only


def test_a_syntax_error_is_raised_at_load() -> None:
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate("{% for m in messages %}\n{{ m. }}{% endfor %}")


def test_no_template_is_an_error_when_a_role_is_used() -> None:
    template = ChatTemplate(None)
    assert not template.is_append_only
    assert template.stop_ids() == frozenset()
    with pytest.raises(ChatTemplateError, match="no chat template"):
        template.prefix("user")
    with pytest.raises(ChatTemplateError, match="no chat template"):
        template.suffix("user")


def test_a_template_that_ignores_contents_is_refused() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(ChatTemplateError, match="leaves out the content"):
        template.prefix("user")
    assert "does not render" in template.differences


def test_templates_run_in_a_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__ }}{{ messages[0].content }}")
    with pytest.raises(ChatTemplateError, match="unsafe"):
        template.prefix("user")


def test_what_hugging_face_templates_expect_is_there() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% generation %}{{ {'a<': 'é'} | tojson }}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    )
    assert ChatTemplate(source).prefix("user") == '{"a<": "é"}'


def test_the_shipped_way_reads_the_model_s_own_template(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", template=CHATML)
    assert ChatTemplate.of(Tokenizer.from_gguf(path)).is_append_only
