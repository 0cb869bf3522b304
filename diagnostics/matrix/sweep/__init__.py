"""Every release of a package, asked for known failures: `nox -s repro -- --all-versions`."""
