"""The helpers that open pages: a page that fails ends its test at once, with the reason."""

import time

import pytest
from page_helpers import opened

SCRIPTS = {
    "an error": "throw new TypeError('it is broken')",
    "a later error": "setTimeout(() => { throw new TypeError('it is broken'); }, 50)",
    "a promise": "Promise.reject(new TypeError('it is broken'))",
    "a message": "console.error('it is broken')",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_page_that_fails_ends_the_test_at_once(chromium, tmp_path, script):
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html><title>t</title><script>{script}</script>", encoding="utf-8")
    begun = time.monotonic()
    with pytest.raises(AssertionError, match="it is broken"), opened(chromium, where=path):
        pass
    assert time.monotonic() - begun < 200  # seconds; a page is waited for 300
