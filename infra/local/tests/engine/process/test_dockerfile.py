from __future__ import annotations

import pytest

from sagemaker_emulator.engine.process.dockerfile import Copy, Install, parse
from sagemaker_emulator.interfaces import ImageBuildError

DOCKERFILE = """
# a comment
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG VERSION=1
ENV PROGRAM=train.py HOME_DIR="/opt/ml code" \\
    VERSION_SEEN=${VERSION}
ENV OLD style value
LABEL org.example.version=$VERSION
WORKDIR /opt/ml
COPY --chown=root requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --no-deps -r /tmp/requirements.txt && \
python -m pip install "extra==1.0"
COPY train.py lib/ code/
ENTRYPOINT ["train"]
"""


def test_what_is_understood():
    recipe = parse(DOCKERFILE, {"VERSION": "7", "UNUSED": "x"})
    assert recipe.base == "python:3.11-slim"
    assert recipe.environment == {
        "PROGRAM": "train.py",
        "HOME_DIR": "/opt/ml code",
        "VERSION_SEEN": "7",
        "OLD": "style value",
    }
    assert recipe.labels == {"org.example.version": "7"}
    assert recipe.copies == [
        Copy(("requirements.txt",), "/tmp/requirements.txt"),
        Copy(("train.py", "lib/"), "/opt/ml/code/"),
    ]
    assert recipe.installs == [
        Install(("/tmp/requirements.txt",), (), with_dependencies=False),
        Install((), ("extra==1.0",)),
    ]
    assert recipe.folder == "/opt/ml"


def test_versions_that_an_install_is_held_to_are_those_of_the_image():
    lines = (
        "FROM base",
        "RUN python -m pip list --format=freeze | sed -nE '/^torch==/p' > /tmp/kept.txt",
        "RUN python -m pip install -c /tmp/kept.txt -r /tmp/requirements.txt",
    )
    assert parse("\n".join(lines), {}).installs == [
        Install(("/tmp/requirements.txt",), (), pins="^torch==")
    ]
    with pytest.raises(ImageBuildError, match="pip option -c"):
        parse("FROM base\nRUN pip install -c /tmp/c.txt timm\n", {})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("RUN apt-get install -y gcc", "only `pip install`"),
        ("RUN pip install -r r.txt && make", "only `pip install`"),
        ("RUN pip install --extra-index-url https://x y", "pip option --extra-index-url"),
        ("USER nobody", "container engine"),
        ("FROM other", "multiple stages"),
        ("COPY --from=builder /a /b", "a different image"),
        ("COPY ../secret /opt/ml/code/", "the build context"),
        ("ADD https://example.org/a /opt/ml/code/", "the build context"),
        ('ENTRYPOINT ["bash"]', "SageMaker runs `train`"),
        ("ENV A=1 B", "expected NAME=value"),
        ("ENV A", "expected NAME=value, got A"),
        ("ENV", "expected NAME=value"),
        ("LABEL", "expected NAME=value"),
        ("COPY [1]", "a source and a target"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_line(line, complaint):
    with pytest.raises(ImageBuildError, match="READ Dockerfile: line 2: ") as error:
        parse(f"FROM base\n{line}\n", {})
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no FROM"),
        ("FROM a\nRUN pip \\", "backslash"),
        ("FROM", "line 1: FROM : expected an image"),
        ("FROM --platform=linux/amd64", "line 1: .*expected an image"),
    ],
)
def test_broken_files(text, complaint):
    with pytest.raises(ImageBuildError, match=complaint):
        parse(text, {})
