"""Requests and answers of LibreTranslate's protocol and of DeepL's.

Sources: https://docs.libretranslate.com/api and https://developers.deepl.com/docs/api-reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from starlette.exceptions import HTTPException

from specdec_plugins.files.lines import without_surrogates
from specdec_plugins.inference.documents import LINE_END
from specdec_plugins.serve.workers import Direction

#: The fields of a request's JSON or form.
Fields = Mapping[str, Any]
Strings = Annotated[list[str], msgspec.Meta(min_length=1)]
#: Fields of a form, at most.
MAX_FIELDS = 1000
#: The number of alternatives that a request asks for.
NUMBER = re.compile(r"[0-9]{1,4}")
#: English names of languages; others have their codes.
NAMES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fi": "Finnish",
    "fr": "French",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "zh": "Chinese",
}


@dataclass(frozen=True)
class Asked:
    """A request in the terms of this package."""

    texts: Sequence[str]
    direction: Direction
    #: Its own fields.
    fields: Fields
    is_html: bool = False
    #: Divide texts into sentences.
    splits: bool = True
    #: Other outputs of each text that are wanted, at most.
    alternatives: int = 0


def fields_of(body: bytes, content_type: str) -> Fields:
    """Return the fields of a request's body: of JSON, if it is not said to be a form; none of an
    empty body.

    A field that a form repeats is a list. Surrogates without a partner, which JSON can spell,
    become U+FFFD.

    Raises:
        ValueError: it is no object of JSON in UTF-8, or no form.
    """
    media_type = content_type.partition(";")[0].lower()
    if "multipart/form-data" in media_type:
        head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
        parts: Any = message_from_bytes(head + body).get_payload()
        if not isinstance(parts, list) or any(part.is_multipart() for part in parts):
            raise ValueError("no parts, or parts in a part")
        values: dict[str, list[str]] = {}
        for part in parts:
            name = str(part.get_param("name", header="content-disposition"))
            values.setdefault(name, []).append(part.get_payload(decode=True).decode())
    elif "form" in media_type:
        values = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    else:
        text = json.dumps(json.loads(body or b"{}"), ensure_ascii=False)
        fields = json.loads(without_surrogates(text))
        if not isinstance(fields, dict):
            raise ValueError("no object")
        return fields
    return {name: items if len(items) > 1 else items[0] for name, items in values.items()}


def strings(fields: Fields, name: str) -> list[str]:
    """Return a field that is a string or a list of strings as a list."""
    try:
        value = msgspec.convert(fields.get(name), str | Strings)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"{name}: must be a string or a list of strings") from error
    return [value] if isinstance(value, str) else value


def direction_of(directions: Sequence[Direction], source: object, target: object) -> Direction:
    """Return the direction of the model for these languages.

    Regions (``EN-US``) and scripts (``zho_Hans``) count only where a model has the very code.
    ``source``: may be empty or ``auto`` where one model only has the target.
    """
    wanted = str(target or "").lower()
    language = str(source or "auto").lower()
    matches = _with_language(directions, 1, wanted)
    if language != "auto":
        matches = _with_language(matches, 0, language)
    if not matches:
        offered = ", ".join(f"{a} to {b}" for a, b in directions)
        raise HTTPException(400, f"{language} to {wanted} is not supported; there is {offered}")
    if len(matches) > 1:
        raise HTTPException(400, "source: name the language, since several models have the target")
    return matches[0]


def _with_language(directions: Sequence[Direction], side: int, code: str) -> list[Direction]:
    exact = [pair for pair in directions if pair[side].lower() == code]
    return exact or [pair for pair in directions if _base(pair[side]) == _base(code)]


def _base(language: str) -> str:
    return re.split("[-_]", language.lower())[0]


def libre_request(fields: Fields, directions: Sequence[Direction]) -> Asked:
    """Read LibreTranslate's ``POST /translate``."""
    kind = fields.get("format", "text")
    if kind not in ("text", "html"):
        raise HTTPException(400, f"format: {kind!r} is neither text nor html")
    direction = direction_of(directions, fields.get("source"), fields.get("target"))
    wanted = str(fields.get("alternatives", 0))
    if not NUMBER.fullmatch(wanted):
        raise HTTPException(400, "alternatives: must be a number, 0 or more")
    return Asked(strings(fields, "q"), direction, fields, kind == "html", alternatives=int(wanted))


def libre_answer(asked: Asked, outputs: Sequence[Sequence[str]]) -> Any:
    """Return LibreTranslate's answer: a list where ``q`` was one.

    ``outputs``: of each text, the best first.
    """
    answer: dict[str, Sequence[Any]] = {"translatedText": [texts[0] for texts in outputs]}
    if asked.fields.get("source") == "auto":
        answer["detectedLanguage"] = detected([asked.direction]) * len(outputs)
    if asked.alternatives:
        answer["alternatives"] = [texts[1 : 1 + asked.alternatives] for texts in outputs]
    if isinstance(asked.fields["q"], str):
        return {name: values[0] for name, values in answer.items()}
    return answer


def libre_languages(directions: Sequence[Direction]) -> list[dict[str, Any]]:
    """Return LibreTranslate's ``GET /languages``."""
    codes = sorted({code for pair in directions for code in pair})
    return [
        {
            "code": code,
            "name": NAMES.get(code, code),
            "targets": sorted(target for source, target in directions if source == code),
        }
        for code in codes
    ]


def detected(directions: Sequence[Direction]) -> list[dict[str, Any]]:
    """Return LibreTranslate's ``POST /detect``: the source of the models, if they have one."""
    sources = {source for source, _ in directions}
    if len(sources) > 1:
        raise HTTPException(400, "the models here have several sources; name the language")
    return [{"confidence": 100, "language": next(iter(sources))}]


def deepl_request(fields: Fields, directions: Sequence[Direction]) -> Asked:
    """Read DeepL's ``POST /v2/translate``."""
    tags = fields.get("tag_handling") or ""
    if tags not in ("", "html"):
        raise HTTPException(400, f"tag_handling: {tags!r} is not supported; html is")
    direction = direction_of(directions, fields.get("source_lang"), fields.get("target_lang"))
    texts = strings(fields, "text")
    split = str(fields.get("split_sentences", "1"))
    if split == "nonewlines" and not tags:  # line ends within HTML are blanks anyway
        texts = [LINE_END.sub(" ", text) for text in texts]
    return Asked(texts, direction, fields, is_html=tags == "html", splits=split != "0")


def deepl_answer(asked: Asked, outputs: Sequence[Sequence[str]]) -> Any:
    """Return DeepL's answer; ``outputs``: of each text, the best first."""
    source = asked.direction[0].upper()
    return {
        "translations": [
            {"detected_source_language": source, "text": best, "billed_characters": len(text)}
            for text, (best, *_) in zip(asked.texts, outputs)
        ]
    }


def deepl_languages(directions: Sequence[Direction], kind: str) -> list[dict[str, Any]]:
    """Return DeepL's ``GET /v2/languages`` of a ``type``: source or target."""
    side = 1 if kind == "target" else 0
    return [
        {"language": code.upper(), "name": NAMES.get(code, code), "supports_formality": False}
        for code in sorted({pair[side] for pair in directions})
    ]
