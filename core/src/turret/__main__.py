"""`python -m turret` is `turret`."""

from turret.cli import main

raise SystemExit(main())
