"""IFEval's 25 instructions: each with responses that follow it and such that don't, strictly and loosely."""

# Words of other languages are no mistyped English ones, and the table reads best in lines.
# ruff: noqa: RUF001, E501

from typing import Any

import pytest

from rollstream.environments.ifeval.form import count_sentences
from rollstream.environments.ifeval.instructions import CHECKS, loosely_followed, strictly_followed
from rollstream.environments.ifeval.language import LANGUAGES, possible_languages
from rollstream.environments.load import load_environment
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import RewardError, UnknownEnvironmentError
from tests.harness.reward_inputs import an_answer

AT_LEAST, LESS = {"relation": "at least"}, {"relation": "less than"}
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("keywords:existence", {"keywords": ["sun", "Moon"]}, ["Sunny moon"], ["sun", "a+n"]),
    ("keywords:frequency", {"keyword": "a.b", "frequency": 2, **AT_LEAST}, ["a.b A.B"], ["a.b axb"]),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, **LESS}, ["sun", "x"], ["sunsun"]),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, ["concatenate"], ["A Cat.", "cat"]),
    ("keywords:forbidden_words", {"forbidden_words": ["c++"]}, ["c", "abc++", "c++11"], ["I like C++.", "c++"]),
    ("keywords:forbidden_words", {"forbidden_words": [" #1"]}, ["a#1"], ["be #1!"]),
    (
        "keywords:letter_frequency",
        {"letter": "o", "let_frequency": 3, "let_relation": "at least"},
        ["Oo o"],
        ["oo", "000"],
    ),
    ("language:response_language", {"language": "de"}, ["Das ist nicht mein Haus und es ist alt."], ["This is it."]),
    ("language:response_language", {"language": "hi"}, ["यह घर बहुत बड़ा है और शहर में है"], ["हे घर आहे आणि ते मोठे आहे"]),
    ("length_constraints:number_sentences", {"num_sentences": 3, **AT_LEAST}, ["A b. C d! E?"], ["Dr. A b. C d."]),
    ("length_constraints:number_sentences", {"num_sentences": 2, **LESS}, ["It is 3.5 m."], ["So. It is."]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, ["a\n***\nb", "a *** b ***"], ["a\n\nb", "a***b***c"]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 3}, ["a***b***c"], ["a***b******c"]),
    ("length_constraints:number_words", {"num_words": 3, **LESS}, ["one two"], ["don't stop", "a b c d"]),
    ("length_constraints:number_words", {"num_words": 3.0, **AT_LEAST}, ["a b c"], ["a b"]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Hello"},
        ['a\n\n"hello, you', "a\n\nHELLO"],
        ["hello\n\na", "a\n\nhello\n\nb", "a\n\nhelloes", "a"],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[a] [b c]", "[][]"], ["[a]", "[a", "(a)(b)"]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["x\np. s. y", "x P.S."], ["PS y", "P.S y"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["x p.p.s y"], ["x P.S. y"]),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, ["* a\n- b", " * a\nx\n * b"], ["* a", "**a**\n* b", "* a\n* b\n- c"]),
    ("detectable_format:constrained_response", {}, ["Well. My answer is yes."], ["My answer is yes", "yes"]),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, ["*a* b **c d**", "*a* *b*"], ["*a*", "* a\n* b", "****"]),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb", "SECTION1 SECTION2 SECTION 3"],
        ["SECTION 1", "Section 1 Section 2", "SECTION A SECTION B"],
    ),
    ("detectable_format:json_format", {}, ['{"a": 1}', '```json\n{"a": 1}\n```', "```\n[]\n```"], ["{'a': 1}", "a", "[" * 99_999]),
    ("detectable_format:title", {}, ["<<Song>>\na"], ["<Song>", "<<>>", "<< >>", "<<a\nb>>"]),
    ("combination:two_responses", {}, ["a\n******\nb", "a******b******"], ["a******a", "a", "a******b******c", "a***b"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, ["say it. It", " Say it."], ["It. Say it.", "Say"]),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, ["x any questions?", 'x "Any questions?" '], ["Any questions? x"]),
    ("startend:quotation", {}, ['"a"', ' "a" '], ['"', '"a', "'a'", 'a "b"']),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["NON-STOP and I", "A B"],
        ["ABc I", "abc"],
    ),
    ("change_case:english_capital", {}, ["THE CAT IS THERE, 3 TIMES"], ["The cat", "DER HUND IST NICHT DA UND DORT", "3"]),
    ("change_case:english_lowercase", {}, ["the cat is there, 3 times"], ["The cat", "der hund ist nicht da und dort", "3"]),
    ("punctuation:no_comma", {}, ["a b; c"], ["a, b"]),
]  # fmt: skip


def followed(name: str, arguments: dict[str, Any], response: str) -> list[bool]:
    return strictly_followed(an_answer(response, instruction_id_list=[name], kwargs=[arguments]))


@pytest.mark.parametrize(
    ("name", "arguments", "response", "expected"),
    [
        (name, arguments, response, expected)
        for name, arguments, right, wrong in CASES
        for responses, expected in ((right, True), ([*wrong, ""], False))
        for response in responses
    ],
)
def test_an_instruction_is_followed_or_not(name: str, arguments: dict[str, Any], response: str, expected: bool) -> None:
    assert followed(name, arguments, response) == [expected]


def test_the_table_covers_exactly_the_instructions_of_the_paper() -> None:
    assert {name for name, *_ in CASES} == set(CHECKS)
    assert len(CHECKS) == 25


@pytest.mark.parametrize("name", CHECKS)
def test_a_response_of_100_kb_is_judged(name: str) -> None:
    arguments = next(arguments for known, arguments, *_ in CASES if known == name)
    for response in ("word " * 20_000, "[" * 100_000, "<" * 100_000, "." * 100_000, "*" * 100_000, "a.b" * 30_000):
        assert len(followed(name, arguments, response)) == 1


@pytest.mark.parametrize(
    "response",
    [
        'Sure, here it is:\n"A text"', '"A text"\nI hope that helps.', 'Sure:\n"A text"\nI hope that helps.', '*"A text"*',
        'Sure:\n**"A text"**',
    ],
)  # fmt: skip
def test_loosely_an_introduction_an_ending_and_asterisks_are_forgiven(response: str) -> None:
    sample = an_answer(response, instruction_id_list=["startend:quotation"], kwargs=[{}])
    assert strictly_followed(sample) == [False]
    assert loosely_followed(sample) == [True]


def test_the_reward_is_that_all_are_followed_and_the_shares_are_reported() -> None:
    sample = an_answer(
        "Sure:\nno comma here",
        instruction_id_list=["punctuation:no_comma", "change_case:english_lowercase", "startend:quotation"],
        kwargs=[{}, {"num_words": None}, None],
    )
    reward, components = load_environment("ifeval").rubric.score(sample)
    assert components == {
        "strict": 0.0,
        "loose": 0.0,
        "strict_share": pytest.approx(1 / 3),
        "loose_share": pytest.approx(2 / 3),
    }
    assert reward == 0.0
    by_share = load_environment("ifeval", {"ifeval": Declaration(options={"reward": "share"})})
    assert by_share.rubric.score(sample)[0] == pytest.approx(1 / 3)
    with pytest.raises(UnknownEnvironmentError, match="reward must be one of all, share"):
        load_environment("ifeval", {"ifeval": Declaration(options={"reward": "half"})})


def test_the_instructions_may_stand_in_the_reference_answer() -> None:
    reference = '{"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}'
    assert strictly_followed(an_answer("a b", reference)) == [True]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, "needs 1 to 100 ids"),
        ({"instruction_id_list": []}, "needs 1 to 100 ids"),
        ({"instruction_id_list": "no JSON"}, "is no JSON text"),
        ({"instruction_id_list": [7], "kwargs": [{}]}, "needs 1 to 100 ids"),
        ({"instruction_id_list": ["punctuation:no_comma"] * 101, "kwargs": [{}] * 101}, "needs 1 to 100 ids"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "needs 1 objects in 'kwargs'"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["a"]}, "needs 1 objects in 'kwargs'"),
        ({"instruction_id_list": ["paragraphs:paragraphs"], "kwargs": [{}]}, "paragraphs:paragraphs are not among the 25"),
        ({"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "tlh"}]}, "'tlh' can't be told"),
        ({"instruction_id_list": ["startend:end_checker"], "kwargs": [{"end_phrase": None}]}, "'end_phrase' is 'None'"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": []}]}, "not a list of texts"),
        (
            {"instruction_id_list": ["length_constraints:number_words"], "kwargs": [{"num_words": 3, "relation": "most"}]},
            "not one of at least, less than",
        ),
        (
            {"instruction_id_list": ["length_constraints:number_words"], "kwargs": [{"num_words": 2.5, **LESS}]},
            "not a whole number",
        ),
        (
            {"instruction_id_list": ["keywords:letter_frequency"], "kwargs": [{"letter": "ab"}]},
            "not one letter",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("response", ["a b", ""])
def test_a_row_that_cannot_be_judged_is_an_error_and_never_a_zero(row: dict[str, Any], why: str, response: str) -> None:
    with pytest.raises(RewardError, match=why):
        load_environment("ifeval").rubric.score(an_answer(response, **row))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The cat is on the table and it was there", "en"),
        ("El perro no está en la casa pero es muy bonito", "es"),
        ("O cachorro não está em casa, mas é muito bonito", "pt"),
        ("Le chien n'est pas dans la maison", "fr"),
        ("Il cane non è nella casa ma è molto bello", "it"),
        ("Pies nie jest w domu i się boi", "pl"),
        ("Koira ei ole talossa mutta se on iloinen", "fi"),
        ("Mbwa yuko katika nyumba na ni mzuri kwa watu", "sw"),
        ("Con chó không ở trong nhà và rất đẹp", "vi"),
        ("Это мой дом, и он очень большой", "ru"),
        ("Це мій дім, і він дуже великий", "uk"),
        ("Това е моята къща и тя е много голяма", "bg"),
        ("هذا البيت كبير في المدينة", "ar"),
        ("این خانه بزرگ است و در شهر است", "fa"),
        ("یہ گھر بہت بڑا ہے اور شہر میں ہے", "ur"),
        ("हे घर खूप मोठे आहे आणि ते शहरात आहे", "mr"),
        ("यो घर धेरै ठूलो छ र सहरमा छ", "ne"),
        ("これは家です", "ja"),
        ("이것은 집입니다", "ko"),
        ("นี่คือบ้าน", "th"),
    ],
)
def test_a_sentence_of_each_script_and_family_is_told_from_the_others(text: str, language: str) -> None:
    assert possible_languages(text) == {language}


@pytest.mark.parametrize(
    ("text", "language", "taken_for"),
    [
        ("我喜欢在公园里散步，因为空气很新鲜。", "zh", "ja"),
        ("這座城市的歷史非常悠久，の字也很常見，每年都有許多遊客前來參觀。", "zh", "ja"),
        ("私は公園を散歩するのが好きです。", "ja", "zh"),
        ("Jag bor i en liten stad vid havet och tycker mycket om att läsa böcker på kvällen.", "sv", "de"),
        ("Huset är gammalt men det är fint och jag trivs här med min familj.", "sv", "de"),
        ("Jeg bor i en lille by ved havet, og jeg kan godt lide at læse bøger, men ikke om aftenen.", "da", "de"),
        ("Het is een mooie dag en ik ga naar de markt om brood te kopen.", "nl", "de"),
        ("Bu bir ev ve çok güzel, ama bahçe daha büyük.", "tr", "de"),
        ("Ez egy nagyon szép ház, és van benne egy kert is.", "hu", "de"),
        ("Este o casă frumoasă și mare, dar nu este la oraș.", "ro", "es"),
        ("To je velmi krásný dům, který se nachází u řeky.", "cs", "pl"),
        ("Rumah ini sangat indah dan saya suka tinggal di sini dengan keluarga.", "id", "sw"),
        ("Das Haus ist sehr schön, und wir wohnen gern hier am Fluss.", "de", "sv"),
        ("Grüße aus der schönen Stadt an der Elbe, wo es oft regnet.", "de", "sv"),
        ("The children in the park are playing in the sun and they like it.", "en", "nl"),
    ],
)
def test_a_language_that_nobody_asks_for_is_not_taken_for_one_that_is(text: str, language: str, taken_for: str) -> None:
    found = possible_languages(text)
    assert language in found
    assert taken_for not in found
    instruction = {
        "instruction_id_list": '["language:response_language"]',
        "kwargs": f'[{{"language": "{taken_for}"}}]',
    }
    if taken_for in LANGUAGES:
        assert strictly_followed(an_answer(text, **instruction)) == [False]


def test_a_text_that_shows_too_little_may_be_in_any_language_of_its_script() -> None:
    assert {"en", "de", "fr", "sv"} <= possible_languages("OK")
    assert not possible_languages("OK") & {"ru", "ja"}
    assert possible_languages("東京都") == {"ja", "zh"}
    assert possible_languages("123 !") == LANGUAGES
    assert len(LANGUAGES) == 30


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("Hello", 1),
        ("One. Two! Three?", 3),
        ("Dr. Smith met J. Doe at 3.30 p.m. today. He left.", 2),
        ('He said "Stop." Then he went.', 2),
        ("Wait... what?!", 2),
        ("I am I. You too.", 2),
        ("これは家です。はい。", 2),
    ],
)
def test_sentences_are_counted_by_their_ends(text: str, count: int) -> None:
    assert count_sentences(text) == count
