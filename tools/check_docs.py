"""Build the docs site and check it.

The site builder reports broken links between pages, anchors and cross-references. This script also
fails when

- a docstring does not match its signature, or cannot be parsed;
- a link, image, script or style sheet of a built page leads nowhere (navigation entries included);
- a page cannot be reached from the home page;
- a relative link in README.md, CHANGELOG.md or CONTRIBUTING.md leads nowhere.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
DOCS = ROOT / "docs"
TEXTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# The builder writes this page for a web server, with links that start at the server's root.
NOT_A_PAGE = SITE / "404.html"

MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.MULTILINE | re.DOTALL)


class Page(HTMLParser):
    """The links and anchors of one built page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = {"", "__skip"}
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.ids.add(value)
            elif name in ("href", "src"):
                self.links.append(value)


class Target(NamedTuple):
    path: Path
    anchor: str


def resolve(base: Path, link: str) -> Target | None:
    """Where `link` on the page `base` leads, or None when it leaves the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return Target(base, unquote(parts.fragment))
    path = (base.parent / unquote(parts.path)).resolve()
    if path.is_dir():
        path /= "index.html"
    return Target(path, unquote(parts.fragment))


def build() -> Iterator[str]:
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = Path(sys.executable).parent / "zensical"
    done = subprocess.run(
        [zensical, "build", "--strict", "--clean"],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = COLOUR.sub("", done.stdout)
    if done.returncode and "--strict flag is set" in output:
        # The report says it all; how the builder stopped does not matter.
        output = output.partition("Traceback (most recent call last)")[0]
    print(output.rstrip())
    if done.returncode:
        yield "the build failed, see above"
    if re.search(r"^(griffe|mkdocstrings|mkdocs_autorefs)\b.*:", output, re.MULTILINE):
        yield "a docstring was not understood, see above"


def check_site() -> Iterator[str]:
    pages = {path: Page(path) for path in SITE.rglob("*.html") if path != NOT_A_PAGE}
    reported: set[Target] = set()
    reached: set[Path] = set()
    queue = [SITE / "index.html"]
    for path, page in pages.items():
        name = path.relative_to(SITE)
        for link in sorted(set(page.links)):
            target = resolve(path, link)
            if target is None or target in reported:
                continue
            if not target.path.is_file():
                reported.add(target)  # a navigation entry is on every page: once is enough
                yield f"{name}: {link} leads nowhere"
            elif target.path in pages and target.anchor not in pages[target.path].ids:
                reported.add(target)
                yield f"{name}: {link} has no such anchor"
    while queue:
        path = queue.pop()
        if path in reached or path not in pages:
            continue
        reached.add(path)
        targets = (resolve(path, link) for link in pages[path].links)
        queue += [target.path for target in targets if target]
    for path in sorted(pages.keys() - reached):
        yield f"{path.relative_to(SITE)}: cannot be reached from the home page"


def check_texts() -> Iterator[str]:
    for name in TEXTS:
        path = ROOT / name
        if not path.is_file():
            continue
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for link in MARKDOWN_LINK.findall(text):
            target = resolve(path, link)
            if target and not target.path.exists():
                yield f"{name}: {link} leads nowhere"


def main() -> int:
    if not DOCS.is_dir():
        print("there is no docs/ yet")
        return 1
    problems = list(build())
    if not problems:
        problems += check_site()
    problems += check_texts()
    for problem in problems:
        print(problem)
    if problems:
        print(f"docs: {len(problems)} problem(s)")
        return 1
    print(f"docs: {len(list(SITE.rglob('*.html')))} pages, no broken links")
    return 0


if __name__ == "__main__":
    sys.exit(main())
