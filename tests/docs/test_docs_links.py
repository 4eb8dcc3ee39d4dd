"""What the pages point at is there: files, headings, modules and the names in them, pictures."""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from doc_pages import PAGES, TOP, anchors, links, prose, spans

PICTURES = sorted(TOP.glob("docs/pictures/*.svg"))
_NAMED = re.compile(r"((?:elasticgrid|examples)/[\w/]+\.py):([A-Za-z_][\w.]*)")
_PATH = re.compile(
    r"(?:elasticgrid|examples|tests|docs|services|schemas|benchmarks|core|log)/[\w./-]*|[\w-]+\.(?:md|toml)|compose\.yaml"
)
_SVG = "{http://www.w3.org/2000/svg}"


def named(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for span in spans(page) if (match := _NAMED.fullmatch(span))]


def defined(path: Path) -> set[str]:
    """The functions and classes of a module, methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for link in links(page):
        if "://" in link.target:
            continue
        path, _, anchor = link.target.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link.target
        if anchor:
            assert anchor in anchors(target), link.target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_path_that_is_named_in_a_page_is_there(page: Path) -> None:
    for span in spans(page):
        path = span.split(":", 1)[0]
        if _PATH.fullmatch(path):
            places = (TOP / path, TOP / "elasticgrid" / path, page.parent / path)
            assert any(place.exists() for place in places), span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_function_that_is_named_with_its_file_is_defined_there(page: Path) -> None:
    assert [f"{path}:{name}" for path, name in named(page) if name not in defined(TOP / path)] == []


def test_the_walk_of_a_sample_names_the_files_from_the_loop_to_the_workers() -> None:
    folders = [path.rsplit("/", 1)[0] for path, _ in named(TOP / "docs/architecture.md")]
    walked = ["examples/elastic_numpy", "elasticgrid/publish", "elasticgrid/core", "elasticgrid/launcher"]
    walked += ["elasticgrid/agent"]
    assert sorted(walked, key=folders.index) == walked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_a_page_knows_nothing_of_the_machine_it_was_written_on(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.~-])/(?:work|home|root|Users|tmp)/\S*", text) == []
    assert (
        re.findall(r"\b(?:pypi\.org|pythonhosted\.org|conda\.anaconda\.org|npmjs\.\w+|docker\.io|ghcr\.io)\b", text)
        == []
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_picture_says_in_words_what_it_shows(page: Path) -> None:
    assert [link.target for link in links(page) if link.is_picture and len(link.text.split()) < 4] == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_an_image_that_loads_nothing_from_anywhere(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.tag == f"{_SVG}svg"
    assert root.get("viewBox")
    text = picture.read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|image|foreignObject)|@import|@font-face|url\((?!#)|href", text)


def test_the_picture_of_the_parts_can_be_read_in_the_light_and_in_the_dark() -> None:
    text = (TOP / "docs/pictures/parts.svg").read_text(encoding="utf-8")
    light, _, dark = text.partition("@media (prefers-color-scheme: dark)")
    styles = re.findall(r"^ +(\.?\w+) \{", light, re.MULTILINE)
    restyled = re.findall(r"^ +(\.?\w+) \{", dark, re.MULTILINE)
    assert set(styles) - {".name"} == set(restyled)


def test_the_readme_shows_the_two_commands_the_parts_and_where_to_read_on() -> None:
    text = prose(TOP / "README.md")
    for heading in ("Two commands", "The parts", "In your training loop", "Read on", "Licence"):
        assert f"\n## {heading}\n" in text
