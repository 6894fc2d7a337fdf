"""A CycloneDX 1.5 list of what lipforge depends on, as it is installed here: python tools/sbom.py > sbom.json

Versions and licences come from the installed metadata, and so does who needs whom. `record` is the SHA-256 of the
package's RECORD, which has the SHA-256 of every file that its wheel brought.
"""

import hashlib
import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any


def spelled(name: str) -> str:
    """The name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(found: Distribution, extras: set[str]) -> list[Distribution]:
    """The installed packages that this one asks for, with these extras."""
    wanted = []
    for line in found.requires or []:
        name, _, condition = line.partition(";")
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", condition)
        if extra is None or extra[1] in extras:
            try:
                wanted.append(distribution(re.match(r"[\w.-]+", name)[0]))
            except PackageNotFoundError:  # not for this platform, or an extra that is not installed
                continue
    return wanted


def component(found: Distribution) -> dict[str, Any]:
    """One package as CycloneDX has it."""
    name, about = spelled(found.metadata["Name"]), found.metadata
    licence = about.get("License-Expression") or (about.get("License") or "").split("\n")[0][:80]
    listed = (found.read_text("RECORD") or "").encode()
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{found.version}",
        "purl": f"pkg:pypi/{name}@{found.version}",
        "name": name,
        "version": found.version,
        **({"licenses": [{"license": {"name": licence}}]} if licence else {}),
        "properties": [{"name": "record", "value": hashlib.sha256(listed).hexdigest()}],
    }


def bill(root: str, extras: set[str]) -> dict[str, Any]:
    """The package `root` and all that it needs, directly or not."""
    own, open_ends = {}, [(distribution(root), extras)]
    links: dict[str, list[str]] = {}
    while open_ends:
        found, with_extras = open_ends.pop()
        part = component(found)
        if part["bom-ref"] in own and not with_extras:
            continue
        own[part["bom-ref"]] = part
        below = needs(found, with_extras)
        links[part["bom-ref"]] = sorted({component(one)["bom-ref"] for one in below})
        open_ends += [(one, set()) for one in below if component(one)["bom-ref"] not in own]
    first, *others = own.values()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": first},
        "components": sorted(others, key=lambda one: one["name"]),
        "dependencies": [{"ref": ref, "dependsOn": to} for ref, to in sorted(links.items())],
    }


if __name__ == "__main__":
    print(json.dumps(bill("lipforge", set(sys.argv[1:])), indent=2))
