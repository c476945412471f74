"""Pages of recorded runs: harness.htmlreport writes them."""
