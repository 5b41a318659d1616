"""Seeded English-like text.

Words are drawn one by one with Zipf's law from a few thousand forms, so no phrase repeats and a compressor
finds what it would find in prose of that length, not more. The same seed gives the same text on every
machine.
"""

import random
import zlib
from functools import cache
from itertools import accumulate

_COMMON = (
    "the of and to a in is that it was for on are as with his they at be this from have or by one had "
    "not but what all were when we there can an your which their said if do will each about how up out "
    "them then she many some so these would other into has more her two like him see time could no make "
    "than first been its who now people my made over did down only way find use may water long little "
    "very after words called just where most know"
).split()

_STEMS = (
    "account answer arrange balance board border branch bright budget build cancel carry centre charge "
    "check claim clear clock collect comfort compare complain confirm connect consider contract correct "
    "count cover custom damage deal decide deliver demand depart detail direct discount dispute doubt "
    "draft earn effort enter equal error event exact expect explain extend fail farm figure filter "
    "finish floor follow forward frame garden gather glass govern grant green ground guard handle "
    "harbour help hotel import improve include inform insure intend invoice island join journey judge "
    "kitchen label launch learn letter level limit local machine manage market matter measure mention "
    "method model month morning mountain network notice number object offer order outline packet paint "
    "paper parcel passenger pattern pay period person picture plan platform point policy present price "
    "print problem process produce promise protect question quick railway reason receipt record refund "
    "region remain remind repair repeat report request reserve result return river route sample season "
    "second select send separate service settle shelter signal silver simple station storm street study "
    "suggest summer supply support surface switch system table ticket touch track trade traffic transfer "
    "travel treat trouble trust update urgent value visit wait warehouse weather weight window winter "
    "wonder yellow"
).split()

_ENDINGS = ("", "s", "ed", "ing", "er", "able", "ly", "ment", "ful")

_WORDS = tuple(_COMMON) + tuple(stem + ending for ending in _ENDINGS for stem in _STEMS)
_LETTERS = "aabcdeefghiiklmnooprstuvy"
_CUMULATIVE = tuple(accumulate(1 / (rank + 2.7) ** 0.9 for rank in range(len(_WORDS))))


@cache
def text(seed: str, size: int) -> str:
    """Exactly `size` ASCII characters: sentences of 6 to 16 words, and now and then a name or a number.

    A text is made once: who wants that outside a clock asks for it before."""
    rng = random.Random(zlib.crc32(seed.encode()))
    words = rng.choices(_WORDS, cum_weights=_CUMULATIVE, k=size // 3 + 8)
    start = 0
    for _ in range(len(words)):
        words[start] = words[start].capitalize()
        end = start + rng.randint(6, 16)
        if end >= len(words):
            break
        words[start + 2] = _particular(rng)
        words[end - 1] += "."
        start = end
    return " ".join(words)[: size - 1] + "."


def _particular(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return str(rng.randint(10, 99_999))
    return "".join(
        rng.choices("bdfklmnprstv", k=1) + rng.choices("aeiou", k=1) + rng.choices(_LETTERS, k=4)
    ).title()


def compressibility(samples: int = 1000, size: int = 400) -> float:
    """Share of the bytes that zlib leaves of a long run of samples: a reader can judge whether the text is
    honest.
    """
    joined = "\n".join(text(f"sample {number}", size) for number in range(samples)).encode()
    return len(zlib.compress(joined, 6)) / len(joined)
