"""Headers of static pages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from starlette.testclient import TestClient

from perdure.web.pages import Pages, make_page_headers


@pytest.mark.parametrize("caching", ["no-cache", "no-store"])
def test_each_file_forbids_other_hosts_and_frames(
    tmp_path: Path, caching: Literal["no-cache", "no-store"]
) -> None:
    (tmp_path / "index.html").write_text("<p>page</p>")
    answer = TestClient(Pages(tmp_path, make_page_headers(caching))).get("/")
    assert answer.text == "<p>page</p>"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == caching
    assert answer.headers["x-content-type-options"] == "nosniff"
