"""What tools are asked with is checked, and what they say of themselves is true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fuselens_server.agents.arguments import CheckArguments, ToolError, WhatIfArguments, read, schema
from fuselens_server.agents.roots import Roots
from fuselens_server.agents.tools import TOOLS, Tools
from fuselens_server.work.worker_pool import WorkerPool


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "target is missing: a file, a folder"),
        ({"target": 3}, "target is 3: give a string"),
        ({"target": "a.py", "sekonds": 3}, "sekonds is no argument; there are target, try_fixes, seconds"),
        ({"target": "a.py", "seconds": 0}, "seconds is 0.0: give more than 0, 3600 at most"),
        ({"target": "a.py", "seconds": float("nan")}, "seconds is nan"),
        ({"target": "a.py", "try_fixes": "yes"}, "try_fixes is 'yes': give a boolean"),
        ([], "an object is needed, not []"),
    ],
)
def test_wrong_arguments_are_named(given: Any, said: str) -> None:
    with pytest.raises(ToolError, match=re.escape(said)):
        read(CheckArguments, given)


def test_arguments_of_lists_and_choices() -> None:
    found = read(WhatIfArguments, {"target": "a.py", "replacements": [{"old": "1", "new": "2"}], "dynamic": None})
    assert found.replacements[0].new == "2" and found.dynamic is None and found.seconds == 60.0
    with pytest.raises(ToolError, match=re.escape("replacements[0].new is missing")):
        read(WhatIfArguments, {"target": "a.py", "replacements": [{"old": "1"}]})
    with pytest.raises(ToolError, match="mode is 'fast': give one of 'default'"):
        read(WhatIfArguments, {"target": "a.py", "mode": "fast"})


@pytest.mark.parametrize("name", TOOLS)
def test_schemas_are_schemas(name: str) -> None:
    tool = TOOLS[name]
    for made in (tool.input_schema, tool.output_schema):
        jsonschema.Draft202012Validator.check_schema(json.loads(json.dumps(made)))
        assert made["type"] == "object"
    described = schema(tool.takes)["properties"].values()
    assert all(about.get("description") for about in described)


async def test_codes_answer_by_their_schema(tmp_path: Path) -> None:
    tools = Tools(WorkerPool(lambda _: None), Roots((str(tmp_path),)))
    one, all_, unknown = [await tools.call("codes", given) for given in ({"code": "fl101"}, None, {"code": "FL1"})]
    jsonschema.validate(one.data, TOOLS["codes"].output_schema)
    jsonschema.validate(all_.data, TOOLS["codes"].output_schema)
    assert one.data["codes"][0]["hints"] and "torch.where" in one.text and len(all_.data["codes"]) > 50
    assert unknown.failed and "unknown code 'FL1'" in unknown.text
    nothing = await tools.call("chek", {})
    assert nothing.failed and "there is no tool 'chek'; there are check" in nothing.text


async def test_files_outside_of_the_roots_are_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "a.py").write_text("import torch\n")
    (inside / "link.py").symlink_to(outside / "a.py")
    tools = Tools(WorkerPool(lambda _: None), Roots((str(inside),)))
    for target in (str(outside / "a.py"), "../out/a.py", "link.py", str(outside), "/etc/passwd", "../out"):
        answered = await tools.call("check", {"target": target})
        assert answered.failed and "is not below" in answered.text, target
    missing = await tools.call("check", {"target": "none.py"})
    assert missing.failed and "none.py: no such file or folder" in missing.text
    empty = await tools.call("check", {"target": "."})
    assert not empty.failed or "not below" in empty.text
