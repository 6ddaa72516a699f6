"""Which languages a text may be in, by its script, its most common words and letters that others don't have.

No library for this is installed. What this can tell apart are the 30 languages that IFEval's prompts name, and those
that a text would else be taken for: Chinese, and ten that are written in Latin letters. A text that shows too little,
such as "OK", may be in any language of its script; the original counts an undecidable text as right too. Texts in
further languages are taken for the most similar of these.
"""

# The words of this table are no mistyped Latin ones.
# ruff: noqa: RUF001

import re
from collections.abc import Mapping, Sequence
from typing import Final

_RANGES: Final[Mapping[str, str]] = {
    "Latin": "A-Za-zÀ-ɏḀ-ỿ",
    "Cyrillic": "Ѐ-ӿ",
    "Arabic": "؀-ۿݐ-ݿ",
    "Devanagari": "ऀ-ॿ",
    "Hebrew": "֐-׿",
    "Bengali": "ঀ-৿",
    "Gurmukhi": "਀-੿",
    "Gujarati": "઀-૿",
    "Tamil": "஀-௿",
    "Telugu": "ఀ-౿",
    "Kannada": "ಀ-೿",
    "Malayalam": "ഀ-ൿ",
    "Thai": "฀-๿",
    "Korean": "가-힯ᄀ-ᇿ",
    "Han": "一-鿿",
    "Kana": "぀-ヿ",
}
_SCRIPTS: Final = {script: re.compile(f"[{letters}]") for script, letters in _RANGES.items()}

# The most common words of each. One that several share counts for each of them.
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "Latin": {
        "en": "the and of to is that it was with for as are this you have not they from which be by or an there",
        "de": "der das und ist nicht ein eine mit sich auf auch dem den zu für von werden wird ich wir sie oder aber",
        "es": "el los las y en que es una por con para como pero más su sus está este muy ser hay fue del al lo",
        "pt": "os um uma em não que é com para como mas mais seu sua está este muito são foi do da dos das ao você",
        "fr": "le les et est une des du que qui dans pour pas avec sur ce cette sont mais nous vous il elle au aux",
        "it": "il gli di che è una per non con sono della del nel alla anche come più ma questo questa degli delle si",
        "pl": "i w na z nie jest się że do to jak ale o przez dla są być który która oraz tak jego czy od po",
        "fi": "ja on ei se että oli mutta myös ovat kun niin joka tai hän olla ole minä sinä tämä voi kuin mitä",
        "sw": "na ya wa ni kwa katika la za cha hii kuwa huo hiyo pia lakini kama yake watu sana hili ili au",
        "sv": "och att det som en på är av för med till den har inte om ett men jag så från vi kan skulle också detta",
        "da": "og at det er en til af på som med den der har ikke et om men jeg så fra vi kan også disse blev være",
        "no": "og det er som på en av til å med den har ikke et om men jeg så fra vi kan også disse ble være skal",
        "nl": "de het een en van dat op te zijn met voor niet aan er om ook als maar bij wordt deze naar uit ik",
        "cs": "a je se na že to s z do o jako by ale za pro si jsou které která také nebo byl jeho při",
        "ro": "și în de la cu este un pe nu că din pentru care mai sunt o să fi prin sau acest această fost",
        "hu": "a az és hogy nem is egy ez van meg mint de csak ha volt amely vagy sem lehet kell már",
        "tr": "ve bir bu için ile çok olarak daha gibi olan ne var ama en her kadar sonra değil ben",
        "id": "yang dan di ini itu dengan untuk tidak dari dalam akan pada ke adalah juga saya kami mereka bisa",
        "ca": "els les i que en és una per amb com per però més seu aquest aquesta són va dels al molt hi ha",
        "vi": "và của là có không được cho một những người trong các với này đã để tôi khi như về bạn rất",
    },
    "Cyrillic": {
        "ru": "и не что на я он с как это по но они мы был все так его для вы если или уже есть из",
        "uk": "і та не що на це як до є але його для ви якщо або вже із він вона також який яка був буде",
        "bg": "и не че на е за да се от са като това по но той те със беше които може ще най или към",
    },
    "Arabic": {
        "ar": "في من على أن إلى هذا هذه التي الذي كان ما لا عن مع هو هي كل ذلك قد أو",
        "fa": "و در به از که این است را با برای آن یک خود تا کرد بر هم نیز می شود های",
        "ur": "کے کی میں ہے اور سے کا کو ہیں نے پر یہ کہ ایک نہیں بھی تھا وہ لیے گیا",
    },
    "Devanagari": {
        "hi": "है के में की और से का को हैं यह पर नहीं एक ने भी कि था लिए वह इस",
        "mr": "आहे आणि या ते हे मध्ये नाही होते एक आहेत तर की साठी केले असे त्या म्हणून मी काही",
        "ne": "छ र को मा यो पनि छन् लाई गर्न भएको एक हो तर थियो भने गरेको हुन्छ यस त्यो",
    },
}
_LETTERS: Final[Mapping[str, str]] = {
    "de": "ßäöü", "es": "ñ¿¡", "pt": "ãõ", "fr": "œçêë", "pl": "łżźśćńęą",
    "vi": "ăđơưạảấầẩậắặẻẽẹếềểễệỉịọỏốồổộớờợụủứừửữự",
    "fi": "äö", "sv": "åäö", "da": "æøå", "no": "æøå", "cs": "ěřůčšž", "ro": "șțăâî", "hu": "őű", "tr": "ğşıç",
    "ca": "ŀ·", "ru": "ыэё", "uk": "їєґі", "fa": "پچژگ", "ur": "ٹڈڑںےہ", "ar": "ةىإ", "mr": "ळ",
}  # fmt: skip
_ALONE: Final[Mapping[str, str]] = {
    "Hebrew": "he", "Bengali": "bn", "Gurmukhi": "pa", "Gujarati": "gu", "Tamil": "ta", "Telugu": "te",
    "Kannada": "kn", "Malayalam": "ml", "Thai": "th", "Korean": "ko",
}  # fmt: skip
_KNOWN: Final = {
    script: {code: (frozenset(common.split()), frozenset(_LETTERS.get(code, ""))) for code, common in group.items()}
    for script, group in _WORDS.items()
}
"""Words and letters of each language of a script."""
_OTHERS: Final = frozenset({"sv", "da", "no", "nl", "cs", "ro", "hu", "tr", "id", "ca"})
"""Not asked for, but written in the letters of languages that are."""
LANGUAGES: Final = frozenset({"ja", *_ALONE.values(), *(code for group in _WORDS.values() for code in group)}) - _OTHERS
"""ISO 639-1 codes: the 30 that IFEval's instruction takes."""
_MOST_HAN_FOR_A_KANA: Final = 20
_FEW_HAN: Final = 6
_WORD: Final = re.compile(r"[^\W\d_]+(?:[\u0900-\u0dff\u200c][^\W\d_]*)*")
_MAX_CHARACTERS: Final = 20_000


def possible_languages(text: str) -> frozenset[str]:
    """Codes of the languages that a text may be in; all of them if it has no letter.

    Only its first 20,000 characters are read.
    """
    start = text[:_MAX_CHARACTERS].lower()
    counts = {script: len(pattern.findall(start)) for script, pattern in _SCRIPTS.items()}
    num_han, num_kana = counts.pop("Han"), counts.pop("Kana")
    if num_han + num_kana > max(counts.values()):
        return _japanese_or_chinese(num_han, num_kana)
    script = max(counts, key=lambda name: counts[name])
    if not counts[script]:
        return LANGUAGES
    if script in _ALONE:
        return frozenset({_ALONE[script]})
    words = _WORD.findall(start)
    evidence = {code: _evidence(words, *known) for code, known in _KNOWN[script].items()}
    most = max(evidence.values())
    return frozenset(code for code, found in evidence.items() if found == most)


def _japanese_or_chinese(num_han: int, num_kana: int) -> frozenset[str]:
    """No Japanese sentence does without kana, and Chinese takes one at most in a name; a word shows too little."""
    if num_han <= num_kana * _MOST_HAN_FOR_A_KANA:
        return frozenset({"ja"})
    return frozenset({"ja", "zh"} if num_han <= _FEW_HAN else {"zh"})


def _evidence(words: Sequence[str], known: frozenset[str], letters: frozenset[str]) -> int:
    """How many of the words a language knows as its own, or by its letters."""
    return sum(word in known for word in words) + sum(not letters.isdisjoint(word) for word in words if letters)
