"""A number that is too long for Python's reader of JSON is refused with its place, as any other large one."""

from __future__ import annotations

import pytest

from perdure.server.json_bodies import parse_json
from tests.server.acceptance.saying import detail
from tests.server.hosting import run, serving

BODIES = {
    "/threads": ('{"metadata": {"a": NUMBER}}', "metadata.a"),
    "/runs/wait": ('{"assistant_id": "aware", "input": {"a": [1, NUMBER]}}', "input.a.1"),
    "/threads/search": ('{"limit": NUMBER}', "limit"),
}


@pytest.mark.parametrize("number", ["9" * 4301, "-" + "9" * 4301, "1e999", "NaN"], ids=lambda text: text[:5])
@run
async def test_a_number_that_cannot_be_stored_is_refused_with_its_place(near: str, number: str) -> None:
    async with serving(near) as server:
        http = await server.http()
        for path, (body, place) in BODIES.items():
            content = body.replace("NUMBER", number)
            refused = await http.post(path, content=content, headers={"Content-Type": "application/json"})
            assert refused.status_code == 422, (path, refused.text)
            assert place in detail(refused)


def test_a_long_integer_is_still_larger_than_any_float() -> None:
    assert parse_json("[1, -12, 18446744073709551616]") == [1, -12, 1 << 64]
    for sign in ("", "-"):
        with pytest.raises(OverflowError):
            float(parse_json(sign + "9" * 5000))
