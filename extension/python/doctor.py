"""Prints, as one line of JSON, what an interpreter has for Fuselens: run by the command Doctor of the extension.

Each fact is found by itself: what fails is told by its reason, and hides nothing else.
"""

import contextlib
import json
import sys
from importlib import metadata


def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def compiler():
    from fuselens import config
    from fuselens.runtime import build

    return build.find_compiler(config.from_environment()).version


def gpu():
    import torch

    if not torch.cuda.is_available():
        return None
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{', '.join(names)} (CUDA {torch.version.cuda})"


def cache():
    from fuselens import config
    from fuselens.runtime.cache import contents, place

    folder = config.from_environment().cache_dir
    found = contents.contents(folder) if folder.is_dir() else contents.Contents()
    return {
        "folder": str(folder),
        "files": len(found.entries),
        "bytes": found.bytes,
        "problem": place.objection(folder) or "",
    }


def told(find):
    """``{"value": …}``, or ``{"reason": …}`` where that cannot be found out."""
    try:
        return {"value": find()}
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {error}".split("\n")[0]}


def main():
    with contextlib.redirect_stdout(sys.stderr):  # libraries may print when they are imported
        facts = {
            "python": "%d.%d.%d" % sys.version_info[:3],
            "packages": {name: version(name) for name in ("torch", "fuselens", "triton", "pygls", "lsprotocol")},
            "compiler": told(compiler),
            "gpu": told(gpu),
            "cache": told(cache),
        }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
