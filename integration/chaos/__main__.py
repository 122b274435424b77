"""Carry out the plan that is given as JSON, and print the report as JSON."""

import json
import sys
from dataclasses import asdict

from integration.chaos.driver import main
from integration.chaos.plan import Plan

given = json.loads(sys.argv[1])
print(json.dumps(asdict(main(Plan(**given | {"lanes": tuple(given["lanes"])})))))
