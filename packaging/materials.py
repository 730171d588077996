"""materials.py BILL < TREE: leaves in a bill of materials the crates of TREE, which `cargo tree --prefix none` prints.

cargo-cyclonedx also lists what features would bring that are off, here three times as many. Folders of the machine go, too.
"""

import json
import re
import sys
from pathlib import Path

path = Path(sys.argv[1])
bill = json.loads(path.read_text())
tree = {tuple(line.split()[:2]) for line in sys.stdin if line.strip()}
whole = bill["metadata"]["component"]
tree.remove((whole["name"], f"v{whole['version']}"))

bill["components"] = [made for made in bill["components"] if (made["name"], f"v{made['version']}") in tree]
assert len(bill["components"]) == len(tree), "the bill lacks a crate of the tree"
kept = {made["bom-ref"] for made in (*bill["components"], whole)}
bill["dependencies"] = [
    {**needs, "dependsOn": [ref for ref in needs.get("dependsOn", ()) if ref in kept]}
    for needs in bill["dependencies"]
    if needs["ref"] in kept
]

text = re.sub(r"path\+file://[^\"#]*#", "", json.dumps(bill, indent=2))
text = re.sub(r"\?download_url=file://[^\"#]*", "", text)
assert "file://" not in text
path.write_text(text + "\n")
