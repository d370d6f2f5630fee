"""The standard library as a corpus: many documents, cut where functions and classes are, always in the same order."""

import ast

import pytest

from packhorse.demo.corpus import python_corpus, source_documents


def test_small_classes_are_whole_and_large_ones_are_cut_into_methods() -> None:
    long_body = "".join(f"        x = {i}\n" for i in range(50))
    source = (
        "import os\n"
        "@decorated(\n    1)\n@twice\ndef top(x):\n    def inner():\n        return 'é'\n    return inner\n"
        "class Small:\n    def method(self): ...\n"
        "\x0c\n"
        f"class Large:\n    y = 1\n    @property\n    def first(self):\n{long_body}"
        "    class Inner:\n        z = 2\n    async def second(self): ...\n"
        "if os.name:\n    def a(): ...\nelse:\n    def b(): ...\n"
        "try:\n    def c(): ...\nexcept OSError:\n    def d(): ...\n"
    )
    body = long_body.replace("        ", "    ")
    assert list(source_documents(source.encode())) == [
        "@decorated(\n    1)\n@twice\ndef top(x):\n    def inner():\n        return 'é'\n    return inner\n",
        "class Small:\n    def method(self): ...\n",
        f"@property\ndef first(self):\n{body}",
        "class Inner:\n    z = 2\n",
        "async def second(self): ...\n",
        "def a(): ...\n",
        "def b(): ...\n",
        "def c(): ...\n",
        "def d(): ...\n",
    ]


def test_the_declared_encoding_is_used() -> None:
    source = "# -*- coding: latin-1 -*-\ndef f(): return 'é'\n".encode("latin-1")
    assert list(source_documents(source)) == ["def f(): return 'é'\n"]


def test_a_file_that_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        list(source_documents(b"def f(:\n"))


def test_the_library_gives_thousands_of_documents_in_a_fixed_order() -> None:
    found = list(python_corpus(3_000))
    assert len(found) == 3_000
    assert found[:500] == list(python_corpus(500))
    assert len(set(found)) > 2_700
    for text in found[::97]:
        (node,) = ast.parse(text).body[:1]
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def test_limits() -> None:
    assert list(python_corpus(0)) == []
    with pytest.raises(ValueError, match="limit_documents is -1"):
        python_corpus(-1)
